"""Coloured images of 32 x 32 pixels, as CIFAR-10's: three pairs of convolutions, by Keras's functional API."""

import keras
import tensorflow as tf
from keras import layers

from trainmaster.zoo import Mode


def custom_model():
    pixels = x = keras.Input((32, 32, 3), name="pixels")
    for width in (32, 64, 128):
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.BatchNormalization()(x)
            x = layers.Activation("relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(pixels, layers.Dense(10)(layers.Dropout(0.2)(x)))


def of_short_trainings(model):
    """Have the statistics of a model's batches follow within some steps. Keras's own models are made for thousands."""
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = 0.9
    return model


def loss(labels, predictions):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=2e-3):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(record):
        numbers = tf.io.decode_raw(record, tf.uint8)
        pixels = tf.reshape(tf.cast(numbers[1:], tf.float32) / 127.5 - 1, (32, 32, 3))
        return pixels if mode == Mode.PREDICTION else (pixels, tf.cast(numbers[0], tf.int32))

    dataset = dataset.map(parse)
    return dataset.shuffle(1024, seed=0) if mode == Mode.TRAINING else dataset


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
