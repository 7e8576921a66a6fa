"""Coloured images of 32 x 32 pixels: a residual network of 20 layers, as He and others' for CIFAR-10 (arXiv:1512.03385, 4.2)."""

import keras
from images.functional import eval_metrics_fn, feed, loss, optimizer
from keras import layers

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def convolution(x, width, stride=1):
    x = layers.Conv2D(width, 3, stride, padding="same", use_bias=False)(x)
    return layers.BatchNormalization()(x)


def custom_model(blocks=3):
    pixels = keras.Input((32, 32, 3), name="pixels")
    x = layers.Activation("relu")(convolution(pixels, 16))
    for width in (16, 32, 64):
        for block in range(blocks):
            stride = 2 if width > 16 and not block else 1
            shortcut = x if stride == 1 else layers.BatchNormalization()(layers.Conv2D(width, 1, stride)(x))
            inner = convolution(layers.Activation("relu")(convolution(x, width, stride)), width)
            x = layers.Activation("relu")(layers.Add()([inner, shortcut]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(pixels, layers.Dense(10)(x))
