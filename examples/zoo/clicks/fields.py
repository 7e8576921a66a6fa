"""Shared code of the click models: 26 ids a record, their embeddings, loss, optimizer, feed and metrics.

Give `--model_params "ids=1000000;dimension=16"` for tables of the size of Criteo's.
"""

import keras
import tensorflow as tf
from keras import layers, ops

from trainmaster.zoo import Mode

FIELDS = 26
DECODED = 256  # records that are decoded at once: one by one takes ten times as long


def embedded(ids, dimension):
    """Return the input, and the embeddings (batch, 26, dimension) and weights (batch, 26, 1) of its ids."""
    features = keras.Input((FIELDS,), name="features", dtype="int32")
    vectors = layers.Embedding(
        ids, dimension, embeddings_initializer=keras.initializers.RandomNormal(stddev=0.1), name="vectors"
    )
    weights = layers.Embedding(ids, 1, embeddings_initializer="zeros", name="weights")
    return features, vectors(features), weights(features)


@keras.saving.register_keras_serializable("clicks")
class Pairs(layers.Layer):
    """The sum of the products of all pairs of fields, a vector (batch, dimension): (sum^2 - sum of squares) / 2."""

    def call(self, vectors):
        return (ops.square(ops.sum(vectors, 1)) - ops.sum(ops.square(vectors), 1)) / 2


@keras.saving.register_keras_serializable("clicks")
class Sum(layers.Layer):
    """The sum of all but the first axis, as one column."""

    def call(self, numbers):
        return ops.sum(ops.reshape(numbers, (ops.shape(numbers)[0], -1)), 1, keepdims=True)


def dense(x, widths=(64, 32)):
    for width in widths:
        x = layers.Dense(width, activation="relu")(x)
    return x


def loss(labels, predictions):
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=3e-3):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(records):
        numbers = tf.ensure_shape(tf.io.decode_raw(records, tf.int32), (None, FIELDS + 1))
        features = numbers[:, :FIELDS]
        return features if mode == Mode.PREDICTION else (features, tf.cast(numbers[:, FIELDS:], tf.float32))

    if mode == Mode.TRAINING:
        dataset = dataset.shuffle(4096, seed=0)
    return dataset.batch(DECODED).map(parse).unbatch()


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(from_logits=True)}
