"""Print the accuracy of a program's result on records that it was not trained with: accuracy.py KIND PATH DATA.

KIND is the form of the result: csv (records alone, which are counted), saved (a SavedModel), checkpoint, pairs ("label prediction"), json,
pixels, or log.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

KIND, PATH, DATA = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])


def lines(folder: Path, names: str = "part-*") -> list[str]:
    return [line for path in sorted(folder.glob(names)) for line in path.read_text().splitlines()]


PARTS = sorted(path.name for path in (DATA / "mnist/csv/test").glob("part-*"))


def test_records() -> tuple[np.ndarray, np.ndarray]:
    rows = np.array([line.split(",") for line in lines(DATA / "mnist/csv/test")], dtype=int)
    return rows[:, 0], (rows[:, 1:] / 255).astype("float32").reshape(-1, 28, 28, 1)


def share(good: np.ndarray) -> str:
    return f"{len(good)} records, accuracy {np.mean(good):.4f}"


def of_saved_model() -> str:
    import tensorflow as tf

    labels, images = test_records()
    path = max(file.parent for file in PATH.glob("**/saved_model.pb"))
    predict = tf.saved_model.load(str(path)).signatures["serving_default"]
    [name] = predict.structured_input_signature[1]
    batches = [predict(**{name: tf.constant(part)}) for part in np.array_split(images, 20)]
    answers = np.concatenate([next(iter(batch.values())).numpy() for batch in batches])
    return share(answers.argmax(1) == labels)


def of_checkpoint() -> str:
    """Compute the network of the Estimator's example: a convolution, a pool, and two dense layers."""
    import tensorflow as tf

    labels, images = test_records()
    tensor = tf.train.load_checkpoint(str(PATH)).get_tensor
    x = tf.nn.relu(tf.nn.conv2d(images, tensor("conv2d/kernel"), 1, "VALID") + tensor("conv2d/bias"))
    x = tf.reshape(tf.nn.max_pool2d(x, 2, 2, "VALID"), (len(images), -1))
    x = tf.nn.relu(x @ tensor("dense/kernel") + tensor("dense/bias"))
    answers = (x @ tensor("dense_1/kernel") + tensor("dense_1/bias")).numpy()
    return f"step {tensor('global_step')}, {share(answers.argmax(1) == labels)}"


def of_pixels() -> str:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    model = tf.saved_model.load(str(max(file.parent for file in PATH.glob("**/saved_model.pb"))))
    good = []
    for row in tfds.load("oxford_iiit_pet:3.2.0", split="test"):
        image = tf.image.resize(row["image"], (128, 128)) / 128.0 - 1
        mask = tf.cast(tf.image.resize(row["segmentation_mask"], (128, 128)), tf.int64) - 1
        [answer] = model.signatures["serving_default"](tf.constant(image[None])).values()
        good.append(float(tf.reduce_mean(tf.cast(tf.argmax(answer[0], -1) == mask[..., 0], tf.float32))))
    return f"{share(np.array(good))} of pixels"


def of_pairs() -> str:
    pairs = np.array([line.split() for line in lines(PATH)], dtype=int)
    return share(pairs[:, 0] == pairs[:, 1])


def of_json() -> str:
    """Spark reads files in the order in which the file system lists them: a part belongs to the file whose labels fit best."""
    files = [np.array([int(line.split(",")[0]) for line in lines(DATA / "mnist/csv/test", name)]) for name in PARTS]
    good = []
    for path in sorted(PATH.glob("part-*.json")):
        answers = np.array([json.loads(line)["argmax"] for line in path.read_text().splitlines()])
        good.append(max((answers == labels for labels in files if len(labels) == len(answers)), key=np.sum))
    return share(np.concatenate(good))


def of_log() -> str:
    text = PATH.read_text(errors="replace")
    accuracies = re.findall(r"sparse_categorical_accuracy: ([0-9.e-]+)", text)
    return f"training accuracy {accuracies[-1]}" if accuracies else sys.exit("no accuracy in the log")


KINDS = {
    "csv": lambda: f"{len(list(PATH.glob('train/part-*')))} files", "saved": of_saved_model, "checkpoint": of_checkpoint,
    "pairs": of_pairs, "json": of_json, "pixels": of_pixels, "log": of_log,
}  # fmt: skip
print(KINDS[KIND]())
