"""Coloured images of 32 x 32 pixels: Keras's own MobileNetV2, from random weights."""

import keras
from images.functional import eval_metrics_fn, feed, loss, of_short_trainings, optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(alpha=0.35):
    model = keras.applications.MobileNetV2(
        (32, 32, 3), alpha=alpha, weights=None, classes=10, classifier_activation=None
    )
    return of_short_trainings(model)
