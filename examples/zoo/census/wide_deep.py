"""Income by the columns of a census: a linear part on ids and on pairs of them, beside a deep part (arXiv:1606.07792)."""

import keras
from census.columns import embedded, eval_metrics_fn, feed, ids, inputs, loss, numbers, optimizer
from keras import layers

from trainmaster.elasticdl.preprocessing import Hashing

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(pairs=512):
    given = inputs()
    weights = [layers.Embedding(count, 1)(found) for found, count in ids(given).values()]
    weights.append(layers.Embedding(pairs, 1)(Hashing(pairs)(given["pair"])))
    wide = layers.Add()([layers.Flatten()(weight) for weight in weights])
    x = layers.Concatenate()([*embedded(given, 8), *numbers(given)])
    for width in (64, 32):
        x = layers.Dense(width, activation="relu")(x)
    return keras.Model(given, layers.Add()([wide, layers.Dense(1)(x)]))
