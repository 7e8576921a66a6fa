"""Neural factorization machine (arXiv:1708.05027): dense layers on the products of all pairs."""

import keras
from clicks.fields import Pairs, Sum, dense, embedded, eval_metrics_fn, feed, loss, optimizer
from keras import layers

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(ids=520, dimension=8):
    features, vectors, weights = embedded(ids, dimension)
    return keras.Model(features, layers.Add()([Sum()(weights), layers.Dense(1)(dense(Pairs()(vectors)))]))
