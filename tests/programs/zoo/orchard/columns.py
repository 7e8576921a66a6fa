"""A model of feature columns, which Keras 2 alone has, as ElasticDL's users wrote it. A record is "height,kind,soil,label"."""

import tensorflow as tf
from elasticdl.python.elasticdl.feature_column import feature_column
from elasticdl_preprocessing.feature_column import feature_column as joined

NUMBERS, WORDS = ("height",), ("kind", "soil")


def custom_model(tables=True):
    embedding_column = feature_column.embedding_column if tables else tf.feature_column.embedding_column
    kind = tf.feature_column.categorical_column_with_hash_bucket("kind", 1000)
    soil = tf.feature_column.categorical_column_with_vocabulary_list("soil", ["clay", "sand", "loam"])
    both = joined.concatenated_categorical_column([kind, soil])
    high = tf.feature_column.bucketized_column(tf.feature_column.numeric_column("height"), [0.5])
    columns = [
        tf.feature_column.numeric_column("height"),
        embedding_column(kind, dimension=4),
        embedding_column(both if tables else soil, dimension=2, combiner="sum"),
        tf.feature_column.embedding_column(joined.concatenated_categorical_column([high, soil]), dimension=3),
    ]
    inputs = {name: tf.keras.Input((1,), name=name) for name in NUMBERS}
    inputs |= {name: tf.keras.Input((1,), name=name, dtype=tf.string) for name in WORDS}
    hidden = tf.keras.layers.Dense(8, activation="relu")(tf.keras.layers.DenseFeatures(columns)(inputs))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))


def loss(labels, predictions):
    return tf.keras.losses.binary_crossentropy(labels, predictions)


def optimizer():
    return tf.keras.optimizers.Adam(0.02)


def feed(dataset, mode, metadata):
    def parse(record):
        height, kind, soil, label = tf.unstack(tf.ensure_shape(tf.strings.split(record, ","), (4,)))
        features = {"height": tf.strings.to_number([height]), "kind": [kind], "soil": [soil]}
        return features, tf.strings.to_number([label])

    return dataset.map(parse)


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: tf.equal(labels, tf.round(predictions))}
