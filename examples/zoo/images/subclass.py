"""Coloured images of 32 x 32 pixels: the network of `functional.py` as a subclass of keras.Model."""

import keras
from images.functional import eval_metrics_fn, feed, loss, optimizer
from keras import layers

__all__ = ["CustomModel", "eval_metrics_fn", "feed", "loss", "optimizer"]


@keras.saving.register_keras_serializable("images")
class CustomModel(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.blocks = []
        for width in (32, 64, 128):
            for _ in range(2):
                self.blocks += [
                    layers.Conv2D(width, 3, padding="same", use_bias=False),
                    layers.BatchNormalization(),
                    layers.Activation("relu"),
                ]
            self.blocks.append(layers.MaxPooling2D())
        self.mean = layers.GlobalAveragePooling2D()
        self.dropout = layers.Dropout(0.2)
        self.scores = layers.Dense(10)

    def call(self, pixels, training=False):
        x = pixels
        for layer in self.blocks:
            x = layer(x, training=training) if isinstance(layer, layers.BatchNormalization) else layer(x)
        return self.scores(self.dropout(self.mean(x), training=training))
