"""Train a Keras model by `fit` on handwritten digits, together with whoever else is there.

    python fit_keras.py            # alone
    tm run fit_keras.yaml          # by Trainmaster: members come and go, and the others go on

Against a program of one process three lines are new: they are marked.
"""

import json
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import keras
import numpy as np

from trainmaster.runtime import task
from trainmaster.runtime.elastic import keras_training as elastic  # new

MODEL = Path(os.environ.get("TRAINMASTER_OUTPUT_MODEL", "model"))
DATA = Path(__file__).parent.parent / "digits" / "data"


def read(name):
    """Pixels and labels of an input: all files of its directory."""
    place = Path(os.environ.get(f"TRAINMASTER_INPUT_{name.upper()}", DATA / name))
    table = np.concatenate([np.loadtxt(path, delimiter=",", ndmin=2) for path in sorted(place.glob("*.csv"))])
    return (table[:, 1:] / 16).astype("float32"), table[:, 0].astype("int64")


def main():
    keras.utils.set_random_seed(task().index)  # new: each member draws other batches
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)])
    model.compile(
        keras.optimizers.Adam(2e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    MODEL.mkdir(parents=True, exist_ok=True)  # who comes when the others have finished ends in the next line
    model.fit(*read("train"), batch_size=32, epochs=20, verbose=2, callbacks=[elastic.Callback()])  # new: the callback
    accuracy = model.evaluate(*read("test"), verbose=0)[1]
    print(f"{accuracy:.4f} of the held-out digits read rightly", flush=True)
    model.save(MODEL / "model.keras")  # all members have the same weights
    (MODEL / "result.json").write_text(json.dumps({"accuracy": accuracy}) + "\n")


if __name__ == "__main__":
    main()
