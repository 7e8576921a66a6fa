"""Handwritten digits of 28 x 28 pixels: two convolutions, by Keras's functional API."""

import keras
import tensorflow as tf
from keras import layers

from trainmaster.zoo import Mode


def custom_model():
    pixels = keras.Input((28, 28, 1), name="pixels")
    x = layers.Conv2D(32, 3, activation="relu")(pixels)
    x = layers.Conv2D(64, 3, activation="relu")(x)
    x = layers.BatchNormalization()(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Dropout(0.25)(x)
    x = layers.Flatten()(x)
    return keras.Model(pixels, layers.Dense(10)(x))


def loss(labels, predictions):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=1e-3):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(record):
        numbers = tf.io.decode_raw(record, tf.uint8)
        pixels = tf.reshape(tf.cast(numbers[1:], tf.float32) / 255, (28, 28, 1))
        return pixels if mode == Mode.PREDICTION else (pixels, tf.cast(numbers[0], tf.int32))

    dataset = dataset.map(parse)
    return dataset.shuffle(1024, seed=0) if mode == Mode.TRAINING else dataset


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


class PredictionOutputsProcessor:
    """Print the digits that were read."""

    def process(self, predictions, worker_id):
        print(f"worker {worker_id}: {predictions.argmax(1).tolist()}", flush=True)
