"""Iris: four lengths of a flower, and which of three kinds it is."""

import keras
import tensorflow as tf
from keras import layers

from trainmaster.zoo import Mode


def custom_model():
    lengths = keras.Input((4,), name="lengths")
    x = layers.Dense(32, activation="relu")(lengths)
    return keras.Model(lengths, layers.Dense(3)(x))


def loss(labels, predictions):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=0.02):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(record):
        lengths = tf.strings.to_number(record[:4])
        return lengths if mode == Mode.PREDICTION else (lengths, tf.strings.to_number(record[4], tf.int32))

    dataset = dataset.map(parse)
    return dataset.shuffle(200, seed=0) if mode == Mode.TRAINING else dataset


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
