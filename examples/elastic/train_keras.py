"""Train a Keras model on shards of handwritten digits, in a loop of one's own, together with whoever else is there.

    python train_keras.py          # alone
    tm run train_keras.yaml        # by Trainmaster: members come and go, and the others go on

Each record is used by one member, once an epoch, whichever of them die: `tm audit` shows it.
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

from trainmaster import runtime
from trainmaster.runtime.elastic import keras_training as elastic

MODEL = Path(os.environ.get("TRAINMASTER_OUTPUT_MODEL", "model"))
DATA = Path(__file__).parent.parent / "digits" / "data"
TEST = Path(os.environ.get("TRAINMASTER_INPUT_TEST", DATA / "test"))


def parsed(lines):
    """Pixels and labels of some records."""
    table = np.array([line.split(",") for line in lines], dtype="float32")
    return table[:, 1:] / 16, table[:, 0].astype("int64")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32, help="rows of a step of one member")
    options = parser.parse_args()

    me = runtime.task()
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adam(2e-3)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(input_signature=[tf.TensorSpec((None, 64), tf.float32), tf.TensorSpec((None,), tf.int64)])
    def train(pixels, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(pixels, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)  # their mean over all members
        return loss

    MODEL.mkdir(parents=True, exist_ok=True)  # who comes when the others have finished ends in the next line
    with elastic.Training(model, optimizer) as training:
        source = {"default": str(DATA / "train" / "*.csv"), "epochs": 15}  # alone; else the job file says it
        for lines in training.batches("train", options.batch, shuffle=512, seed=me.index, **source):
            loss = train(*parsed(lines))
            if training.steps % 50 == 0:
                print(f"step {training.steps}: rank {training.rank} of {training.size}, loss {loss:.4f}", flush=True)

    paths = TEST.glob("*.csv") if TEST.is_dir() else TEST.parent.glob(TEST.name)
    pixels, labels = parsed([line for path in sorted(paths) for line in path.read_text().splitlines()])
    accuracy = float(np.mean(model(pixels).numpy().argmax(1) == labels))
    print(f"{accuracy:.4f} of the held-out digits read rightly", flush=True)
    model.save(MODEL / "model.keras")  # all members have the same weights
    (MODEL / "result.json").write_text(json.dumps({"accuracy": accuracy, "steps": training.steps}) + "\n")


if __name__ == "__main__":
    main()
