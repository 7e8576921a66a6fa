"""Train a model of ElasticDL's zoo by a plain loop of Keras, and print its accuracy: plain.py MODEL_DEF FEED FOLDER EPOCHS.

It runs beside model_zoo. FOLDER has train and test, with files of records.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

import trainmaster
from trainmaster.runtime.formats import recordio

definition, feed, folder, epochs = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
sys.path[:0] = ["."]
sys.path += [str(Path(trainmaster.__file__).parent / "elasticdl/alias")]
from elasticdl.python.elasticdl.feature_column import feature_column  # noqa: E402  (the path is set above)

feature_column.embedding_column = lambda column, dimension, **_: tf.feature_column.embedding_column(column, dimension)
module = importlib.import_module("model_zoo." + definition.rpartition(".")[0])
model = getattr(module, definition.rpartition(".")[2])()
optimizer, metrics = module.optimizer(), module.eval_metrics_fn()
part = "logits" if "logits" in metrics else None
callbacks = module.callbacks() if hasattr(module, "callbacks") else []
for callback in callbacks:
    callback.set_model(model)
    model.optimizer = optimizer


def records(name: str) -> Iterator[bytes]:
    for path in sorted((folder / name).iterdir()):
        with path.open("rb") as file:
            yield from recordio.records(file, str(path), 0, path.stat().st_size)


def batches(name: str, mode: str) -> tf.data.Dataset:
    return getattr(module, feed)(tf.data.Dataset.from_tensor_slices(list(records(name))), mode, None).batch(32)


def outputs(x: dict, training: bool) -> object:
    if len(x) == 1 and not isinstance(getattr(model, "_nested_inputs", {}), dict):
        (x,) = x.values()
    return model(x, training=training)


@tf.function(reduce_retracing=True)
def train(x: dict, y: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(module.loss(y, outputs(x, True)))
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
    )


step = 0
for _ in range(epochs):
    for x, y in batches("train", "training"):
        if not step:
            outputs(x, False)
            optimizer.build(model.trainable_variables)
        for callback in callbacks:
            callback.on_train_batch_begin(step)
        train(x, y)
        step += 1
accuracy = (metrics[part] if part else metrics)["accuracy"]
good = total = 0.0
for x, y in batches("test", "evaluation"):
    answer = outputs(x, False)
    good += float(tf.reduce_mean(tf.cast(accuracy(y, answer[part] if part else answer), tf.float32))) * len(y)
    total += len(y)
print("accuracy", good / total)
