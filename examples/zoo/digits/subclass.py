"""Handwritten digits of 28 x 28 pixels: the same network as in `functional.py`, as a subclass of keras.Model."""

import keras
from digits.functional import PredictionOutputsProcessor, eval_metrics_fn, feed, loss, optimizer
from keras import layers

__all__ = ["CustomModel", "PredictionOutputsProcessor", "eval_metrics_fn", "feed", "loss", "optimizer"]


@keras.saving.register_keras_serializable("digits")
class CustomModel(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.convolutions = [layers.Conv2D(32, 3, activation="relu"), layers.Conv2D(64, 3, activation="relu")]
        self.norm = layers.BatchNormalization()
        self.pool = layers.MaxPooling2D()
        self.dropout = layers.Dropout(0.25)
        self.flatten = layers.Flatten()
        self.scores = layers.Dense(10)

    def call(self, pixels, training=False):
        x = pixels
        for convolution in self.convolutions:
            x = convolution(x)
        x = self.pool(self.norm(x, training=training))
        return self.scores(self.flatten(self.dropout(x, training=training)))
