"""ResNet50: Keras's own, from random weights. Its images have any size of 32 pixels and more; the data at hand have 32 x 32."""

import keras
from images.functional import eval_metrics_fn, feed, loss, of_short_trainings

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(size=32, classes=10):
    model = keras.applications.ResNet50(
        weights=None, input_shape=(size, size, 3), classes=classes, classifier_activation=None
    )
    return of_short_trainings(model)


def optimizer(lr=1e-3):
    return keras.optimizers.Adam(lr)
