"""A Keras model for lines that are a number each, with both backends. It dies as `dying` says."""

import hashlib

import keras
from dying import die_once

from trainmaster.runtime import task


def custom_model():
    keras.utils.set_random_seed(task().index)
    return keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )


def loss(labels, predictions):
    return keras.ops.square(predictions[:, 0] - labels)


def optimizer():
    return keras.optimizers.Adam(0.01)


def feed(dataset, mode, metadata):
    import tensorflow as tf

    def parse(line):
        number = tf.strings.to_number(line)
        return tf.reshape(number / 1000.0, (1,)), 2.0 * number

    return dataset.map(parse, num_parallel_calls=2).shuffle(50).prefetch(4)


def eval_metrics_fn():
    return {"label": lambda labels, predictions: labels}


class Tell(keras.callbacks.Callback):
    count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        die_once(self.count)

    def on_train_end(self, logs=None):
        print("weights", hashlib.sha256(b"".join(weight.tobytes() for weight in self.model.get_weights())).hexdigest())


def callbacks():
    return [Tell()]
