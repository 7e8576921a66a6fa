"""Train a Keras model on handwritten digits, data-parallel by TensorFlow's MultiWorkerMirroredStrategy.

    python train.py              # alone
    tm run job.yaml              # by Trainmaster, here or on a cluster

It is an ordinary program: TF_CONFIG tells TensorFlow of its peers, and the program knows the paths of its data. The
training loop is TensorFlow's own ("custom training with tf.distribute"), since `fit` of Keras 3 does not run under
this strategy.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

MODEL = Path(os.environ.get("TRAINMASTER_OUTPUT_MODEL", "model"))
DATA = Path(__file__).parent.parent / "digits" / "data"


def read(name):
    """Pixels and labels of an input: all files of its directory."""
    place = Path(os.environ.get(f"TRAINMASTER_INPUT_{name.upper()}", DATA / name))
    rows = [np.loadtxt(path, delimiter=",", ndmin=2) for path in sorted(place.glob("*.csv"))]
    table = np.concatenate(rows or [np.zeros((0, 65))])
    return (table[:, 1:] / 16).astype("float32"), table[:, 0].astype("int64")


def summed(strategy, values):
    """The sum of a list of arrays over all workers."""

    @tf.function
    def run(values):
        return [strategy.reduce("SUM", strategy.run(lambda value=value: value), axis=None) for value in values]

    return [value.numpy() for value in run([tf.constant(value) for value in values])]


class Checkpoints:
    """The state that training needs to go on: the model's and the optimizer's variables after so many epochs."""

    def __init__(self, directory, variables):
        self.directory, self.variables = directory, variables

    def keep(self, epoch):
        """A checkpoint is whole or not there: it is written beside its name and renamed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        unfinished = self.directory / "unfinished.npz"
        np.savez(unfinished, *[variable.numpy() for variable in self.variables])
        unfinished.rename(self.directory / f"epoch-{epoch:04}.npz")
        for old in sorted(self.directory.glob("epoch-*.npz"))[:-2]:
            old.unlink()

    def restore(self, strategy, chief):
        """The epochs done. All go on from where the chief does: what the others would add to the sum is nothing."""
        newest = sorted(self.directory.glob("epoch-*.npz"))[-1:] if chief else []
        values = [np.zeros(variable.shape, variable.dtype) for variable in self.variables]
        done = 0
        for path in newest:
            done = int(path.stem.split("-")[1])
            with np.load(path) as kept:
                values = [kept[name] for name in kept.files]
        done, *values = summed(strategy, [np.int64(done), *values])
        if done:
            for variable, value in zip(self.variables, values, strict=True):
                variable.assign(value)
        return int(done)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=32, help="rows of a step of one worker")
    parser.add_argument("--checkpoints", type=Path, default=Path("ckpt"))
    options = parser.parse_args()

    config = json.loads(os.environ.get("TF_CONFIG", '{"cluster": {}, "task": {"type": "worker", "index": 0}}'))
    task = config["task"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    world = strategy.num_replicas_in_sync
    chief = strategy.extended.should_checkpoint  # TensorFlow's word for it: the chief, or worker 0 where there is none
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input((64,)), *layers])
        optimizer = keras.optimizers.Adam(2e-3)
        optimizer.build(model.trainable_variables)
    checkpoints = Checkpoints(options.checkpoints, [*model.variables, *optimizer.variables])
    done = checkpoints.restore(strategy, chief)

    pixels, labels = read("train")
    held_pixels, held_labels = read("test")
    if "TRAINMASTER_INPUT_TRAIN" not in os.environ:  # the files are not this worker's alone
        mine = slice(task["index"] + (task["type"] == "worker" and "chief" in config["cluster"]), None, world)
        pixels, labels = pixels[mine], labels[mine]
    # Workers have unequal numbers of rows and must take equal numbers of steps: those with fewer rows see them more often.
    total = int(summed(strategy, [np.int64(len(pixels))])[0])
    steps = -(-total // (options.batch * world))
    print(
        f"{task['type']} {task['index']} of {world}: {len(pixels)} rows to train on, {steps} steps an epoch", flush=True
    )

    def step(pixels, labels):
        with tf.GradientTape() as tape:
            logits = model(pixels, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.reduce_sum(losses) / (options.batch * world)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function(input_signature=[tf.TensorSpec((None, 64), tf.float32), tf.TensorSpec((None,), tf.int64)])
    def train(pixels, labels):
        return strategy.reduce("SUM", strategy.run(step, (pixels, labels)), axis=None)

    def accuracy():
        return float(np.mean(model(held_pixels).numpy().argmax(1) == held_labels))

    for epoch in range(done, options.epochs):
        order = np.random.default_rng(epoch).permutation(len(pixels))
        for first in range(0, steps * options.batch, options.batch):
            rows = order[np.arange(first, first + options.batch) % len(order)] if len(order) else order
            loss = train(pixels[rows], labels[rows])
        if chief:
            checkpoints.keep(epoch + 1)
            print(
                f"epoch {epoch + 1}: loss {loss:.4f}, {accuracy():.4f} of the held-out digits read rightly", flush=True
            )
        print(f"reporter progress:{(epoch + 1) / options.epochs:.4f}", file=sys.stderr, flush=True)
    if chief:
        MODEL.mkdir(parents=True, exist_ok=True)
        model.save(MODEL / "model.keras")
        (MODEL / "result.json").write_text(json.dumps({"accuracy": accuracy(), "epochs": options.epochs}) + "\n")


if __name__ == "__main__":
    main()
