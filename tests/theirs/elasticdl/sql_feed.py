"""Feed the models whose feed SQLFlow generated. It is copied into the model zoo."""

import tensorflow as tf

WORDS = ["workclass", "education", "marital_status", "occupation", "relationship", "race", "sex", "native_country"]
NUMBERS = ["age", "capital_gain", "capital_loss", "hours_per_week"]


def feed(dataset, mode, _):
    def parse(record):
        features = {name: tf.io.FixedLenFeature((1,), tf.string) for name in WORDS}
        features |= {name: tf.io.FixedLenFeature((1,), tf.float32) for name in NUMBERS}
        row = tf.io.parse_single_example(record, features | {"label": tf.io.FixedLenFeature([], tf.int64)})
        return row, row.pop("label")

    return dataset.map(parse)
