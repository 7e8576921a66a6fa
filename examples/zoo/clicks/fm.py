"""Factorization machine (Rendle, 2010): weights of features, and products of their vectors."""

import keras
from clicks.fields import Pairs, Sum, embedded, eval_metrics_fn, feed, loss, optimizer
from keras import layers

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(ids=520, dimension=8):
    features, vectors, weights = embedded(ids, dimension)
    return keras.Model(features, layers.Add()([Sum()(weights), Sum()(Pairs()(vectors))]))
