"""Deep & cross network (arXiv:1708.05123): layers that multiply by the first one's input, beside dense layers."""

import keras
from clicks.fields import Sum, dense, embedded, eval_metrics_fn, feed, loss, optimizer
from keras import layers, ops

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


@keras.saving.register_keras_serializable("clicks")
class Cross(layers.Layer):
    """x0 * (x . w) + b + x."""

    def build(self, shapes):
        width = shapes[0][-1]
        self.kernel = self.add_weight(shape=(width, 1), initializer="glorot_uniform", name="kernel")
        self.bias = self.add_weight(shape=(width,), initializer="zeros", name="bias")

    def call(self, both):
        first, x = both
        return first * ops.matmul(x, self.kernel) + self.bias + x


def custom_model(ids=520, dimension=8, crosses=2):
    features, vectors, weights = embedded(ids, dimension)
    first = crossed = layers.Flatten()(vectors)
    for _ in range(crosses):
        crossed = Cross()([first, crossed])
    both = layers.Concatenate()([crossed, dense(first)])
    return keras.Model(features, layers.Add()([Sum()(weights), layers.Dense(1)(both)]))
