"""Read a feed in the form of a framework: `feed_reader.py FRAMEWORK PATH`; prints what it read, a line of JSON.

The feed has the columns x (float32, 3 numbers, all the row's number), label (the number), text, and tags (lists of any length).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

framework, path = sys.argv[1:]
os.environ["TRAINMASTER_FEED_INPUT"] = path
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from trainmaster.runtime import feed  # noqa: E402

BATCH = 7


def torch(workers: int = 0) -> Any:
    from torch.utils.data import DataLoader

    loader = DataLoader(feed.torch("input", BATCH), batch_size=None, num_workers=workers)
    rows: list[list[Any]] = [[], [], [], []]
    sizes = []
    for batch in loader:
        sizes.append(len(batch["label"]))
        assert batch["x"].shape == (sizes[-1], 3)
        assert (batch["x"][:, 0] == batch["label"]).all()
        rows[0] += batch["x"].tolist()
        rows[1] += batch["label"].tolist()
        rows[2] += batch["text"]
        rows[3] += [row.tolist() for row in batch["tags"]]
    return sizes, rows


def torch_workers() -> Any:
    return torch(2)


def tensorflow() -> Any:
    rows: list[list[Any]] = [[], [], [], []]
    sizes = []
    dataset = feed.tf("input", BATCH)
    assert dataset.element_spec["x"].shape.as_list() == [None, 3]
    for batch in dataset:
        sizes.append(len(batch["label"]))
        rows[0] += batch["x"].numpy().tolist()
        rows[1] += batch["label"].numpy().tolist()
        rows[2] += [text.decode() for text in batch["text"].numpy()]
        rows[3] += batch["tags"].to_list()
    return sizes, rows


def keras() -> Any:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Rescaling(0.01), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), "mse")
    probe = np.full((1, 3), 300.0)

    def error() -> float:
        return abs(float(model.predict_on_batch(probe)[0, 0]) - 300)

    before, steps = error(), []

    class Steps(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            steps.append(batch)

    model.fit(feed.tf("input", BATCH, columns=("x", "label")), verbose=0, callbacks=[Steps()])
    return len(steps), error() < before


def jax() -> Any:
    sizes, rows = [], []
    for x, label in feed.jax("input", BATCH, ("x", "label")):
        sizes.append(len(label))
        assert (x[:, 0] == label).all()
        rows += x.tolist()
    return sizes, rows


print(json.dumps(globals()[framework]()))
