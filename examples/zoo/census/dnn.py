"""Income by the columns of a census: embedded ids and numbers through two dense layers."""

import keras
from census.columns import embedded, eval_metrics_fn, feed, inputs, loss, numbers, optimizer
from keras import layers

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model():
    given = inputs()
    x = layers.Concatenate()([*embedded(given, 8), *numbers(given)])
    for width in (64, 32):
        x = layers.Dense(width, activation="relu")(x)
    return keras.Model(given, layers.Dense(1)(x))
