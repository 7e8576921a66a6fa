"""A model of iris as ElasticDL's users write it: Keras, functional, records of CSV."""

import os

import keras

from trainmaster.zoo import Mode


def custom_model(units=8):
    inputs = keras.Input((4,), name="flower")
    hidden = keras.layers.Dense(units, "relu", kernel_initializer=keras.initializers.GlorotUniform(1))(inputs)
    return keras.Model(inputs, keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(2))(hidden))


def loss(labels, predictions):
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True))


def optimizer(lr=0.05):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    import tensorflow as tf

    place = metadata.column_names.index("class")

    def parse(record):
        numbers = tf.strings.to_number(record, tf.float32)
        features = tf.reshape(tf.concat([numbers[:place], numbers[place + 1 :]], -1), (4,))
        return features if mode == Mode.PREDICTION else (features, tf.cast(numbers[place], tf.int32))

    dataset = dataset.map(parse)
    return dataset.shuffle(200, seed=3) if mode == Mode.TRAINING and not os.environ.get("IN_ORDER") else dataset


def eval_metrics_fn():
    def near(labels, predictions):
        return keras.ops.equal(keras.ops.argmax(predictions, 1), keras.ops.cast(labels, "int64"))

    return {"accuracy": keras.metrics.SparseCategoricalAccuracy(), "near": near}


class Plateau(keras.callbacks.ReduceLROnPlateau):
    """Tells how many epochs were no better, which all are but the first."""

    def __init__(self):
        super().__init__("loss", patience=99, min_delta=1e9)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        print("epochs that were no better:", self.wait)


def plateau_callbacks():
    return [Plateau()]
