"""Clicks by a subclassed model of Keras, with one table of ours and one that is moved. It learns in the first STEPS steps alone."""

import os

import keras

from trainmaster.elasticdl import Embedding
from trainmaster.zoo import Mode

IDS = 40


class Clicks(keras.Model):
    def __init__(self):
        super().__init__()
        self.weights_of_ids = Embedding(1, IDS, "zeros", combiner="sum", name="weights", evict_unused="7d")
        self.vectors = keras.layers.Embedding(IDS, 4, name="vectors")
        self.flat, self.deep = keras.layers.Flatten(), keras.layers.Dense(1, name="deep")

    def call(self, ids, training=None):
        return self.weights_of_ids(ids) + self.deep(self.flat(self.vectors(ids)))


custom_model = Clicks


def loss(labels, predictions):
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)


def optimizer():
    steps = int(os.environ.get("STEPS", "1000000"))
    return keras.optimizers.Adagrad(keras.optimizers.schedules.PiecewiseConstantDecay([steps - 1], [0.5, 0.0]))


def feed(dataset, mode, metadata):
    import tensorflow as tf

    def parse(record):
        numbers = tf.strings.to_number(record, tf.int64)
        return numbers[:3] if mode == Mode.PREDICTION else (numbers[:3], tf.cast(numbers[3:4], tf.float32))

    return dataset.map(parse)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(from_logits=True)}
