"""Iris by `tm train` with Local, from the start of the command to its end, beside plain Keras's own run of the same model and epochs.

    python benchmarks/zoo_iris.py [--runs 9]

Both read the same CSV files, train 20 epochs in batches of 16, evaluate on the data held out, and save the model. Caches are warm: each
runs once before. The figure is the difference of the two times.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import figures

ZOO = figures.ROOT / "examples" / "zoo"
EPOCHS, BATCH, WANTED = 20, 16, 1.0  # s
PLAIN = """
import sys
import keras, tensorflow as tf
sys.path[:0] = sys.argv[1:3]
batch, epochs = map(int, sys.argv[3:])
from iris import dnn

def dataset(part, is_training):
    files = tf.data.Dataset.list_files(f"iris/{part}/*.csv", shuffle=False)
    lines = files.interleave(lambda file: tf.data.TextLineDataset(file).skip(1))
    records = lines.map(lambda line: tf.strings.split(line, ","))
    return dnn.feed(records, "training" if is_training else "evaluation", None).batch(batch)

model = dnn.custom_model()
model.compile(dnn.optimizer(), dnn.loss, metrics=[*dnn.eval_metrics_fn().values()])
model.fit(dataset("train", True), epochs=epochs, verbose=0)
print(model.evaluate(dataset("test", False), verbose=0, return_dict=True))
model.save("plain.keras")
"""


def seconds(command: Sequence[str], folder: str, environ: Mapping[str, str]) -> float:
    """Return the time of a command, which must end well."""
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return took


def measure(runs: int) -> list[figures.Row]:
    with figures.place() as environ, tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        environ = {**environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        seconds([sys.executable, str(ZOO / "data.py"), "iris", "--to", folder], folder, environ)
        train = [
            figures.TM, "train", "--model_zoo", str(ZOO), "--model_def", "iris.dnn.custom_model", "--distribution_strategy", "Local",
            "--training_data", "iris/train", "--validation_data", "iris/test", "--minibatch_size", str(BATCH),
            "--num_epochs", str(EPOCHS), "--output", "model", "--set", "outputs.model.overwrite=true",
        ]  # fmt: skip
        Path(folder, "plain.py").write_text(PLAIN)
        plain = [sys.executable, "plain.py", str(ZOO), str(figures.ROOT / "src"), str(BATCH), str(EPOCHS)]
        for command in (train, plain):
            seconds(command, folder, environ)
        ours, keras = [], []
        for _ in range(runs):
            ours.append(seconds(train, folder, environ))
            keras.append(seconds(plain, folder, environ))
    beyond = [mine - its for mine, its in zip(ours, keras, strict=True)]
    note = "`tm train` less plain Keras"
    return [
        figures.Row("iris by `tm train`, beyond plain Keras's own run", beyond, "s", WANTED, note=note),
        figures.Row("iris by `tm train`", ours, "s", None, "plain Keras", keras),
    ]


if __name__ == "__main__":
    figures.main(measure, 9, __doc__)
