"""xDeepFM (arXiv:1803.05170): products of fields, layer by layer and number by number, beside dense layers."""

import keras
from clicks.fields import Sum, dense, embedded, eval_metrics_fn, feed, loss, optimizer
from keras import layers, ops

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


@keras.saving.register_keras_serializable("clicks")
class Interactions(layers.Layer):
    """The compressed interaction network: each of `widths` weighs the products of the last layer's maps with the fields."""

    def __init__(self, widths=(16, 16), **options):
        super().__init__(**options)
        self.widths = tuple(widths)

    def build(self, shape):
        fields, before, self.kernels = shape[1], shape[1], []
        for number, width in enumerate(self.widths):
            kernel = self.add_weight(
                shape=(width, before, fields), initializer="glorot_uniform", name=f"kernel_{number}"
            )
            self.kernels.append(kernel)
            before = width

    def call(self, vectors):
        maps, sums = vectors, []
        for kernel in self.kernels:
            maps = ops.einsum("whf,bhd,bfd->bwd", kernel, maps, vectors)
            sums.append(ops.sum(maps, -1))
        return ops.concatenate(sums, -1)

    def get_config(self):
        return {**super().get_config(), "widths": self.widths}


def custom_model(ids=520, dimension=8):
    features, vectors, weights = embedded(ids, dimension)
    both = layers.Concatenate()([Interactions()(vectors), dense(layers.Flatten()(vectors))])
    return keras.Model(features, layers.Add()([Sum()(weights), layers.Dense(1)(both)]))
