"""Make data of the shapes that ElasticDL's model zoo and tutorials read: data.py FOLDER."""

import csv
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_iris

from trainmaster.runtime.formats.recordio import Writer

sys.path.insert(0, str(Path(__file__).parents[1]))
from digits import shuffled_digits

FOLDER = Path(sys.argv[1])
RANDOM = np.random.default_rng(1)
Columns = Mapping[str, np.ndarray]


def feature(values: np.ndarray) -> tf.train.Feature:
    flat = np.asarray(values).reshape(-1).tolist()
    if isinstance(flat[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=flat))
    if isinstance(flat[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=flat))
    return tf.train.Feature(
        bytes_list=tf.train.BytesList(value=[v if isinstance(v, bytes) else v.encode() for v in flat])
    )


def write(name: str, columns: Columns, records_per_file: int = 512) -> None:
    """Write four fifths of the records to NAME/train, and the rest to NAME/test."""
    count = len(next(iter(columns.values())))
    for part, rows in (("train", range(count * 4 // 5)), ("test", range(count * 4 // 5, count))):
        folder = FOLDER / name / part
        folder.mkdir(parents=True, exist_ok=True)
        for begin in range(rows.start, rows.stop, records_per_file):
            with Writer(str(folder / f"data-{begin:05d}")) as writer:
                for row in range(begin, min(begin + records_per_file, rows.stop)):
                    features = {key: feature(values[row]) for key, values in columns.items()}
                    writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def words(count: int, *choices: str) -> np.ndarray:
    return np.array(choices)[RANDOM.integers(0, len(choices), count)]


def integers(count: int, low: int, high: int) -> np.ndarray:
    return RANDOM.integers(low, high, count)


def noise(count: int) -> np.ndarray:
    return 0.3 * RANDOM.normal(size=count)


def write_digits() -> None:
    images, labels = shuffled_digits(1)
    write("mnist", {"image": images, "label": labels[:, None].astype("i8")})
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = FOLDER / "mnist_png" / ("training" if number < 1500 else "testing") / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.astype("uint8")).save(folder / f"{number}.png")
    tints = RANDOM.uniform(0.5, 1.0, (len(images), 1, 1, 3))
    colours = (np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None] * tints).astype("f4")
    write("cifar10", {"image": colours, "label": labels[:, None].astype("i8")})
    jpegs = np.array([tf.io.encode_jpeg(image.astype("u1")).numpy() for image in colours[:256]], object)
    write("imagenet", {"image": jpegs, "label": labels[:256].astype("i8") + 1}, 64)


def write_census(count: int = 4000) -> None:
    census = {
        "workclass": words(count, "Private", "Self-emp-not-inc", "Federal-gov", "Local-gov", "?"),
        "education": words(count, "Bachelors", "HS-grad", "Masters", "11th", "Doctorate"),
        "marital-status": words(count, "Married-civ-spouse", "Divorced", "Never-married", "Widowed"),
        "occupation": words(count, "Tech-support", "Sales", "Craft-repair", "Exec-managerial"),
        "relationship": words(count, "Wife", "Husband", "Unmarried", "Own-child"),
        "race": words(count, "White", "Black", "Other"),
        "sex": words(count, "Male", "Female"),
        "native-country": words(count, "United-States", "Peru", "India"),
        "age": integers(count, 17, 90).astype("f4"),
        "capital-gain": (integers(count, 0, 2) * integers(count, 0, 9000)).astype("f4"),
        "capital-loss": (integers(count, 0, 2) * integers(count, 0, 4500)).astype("f4"),
        "hours-per-week": integers(count, 5, 80).astype("f4"),
    }
    degree = np.isin(census["education"], ["Bachelors", "Masters", "Doctorate"])
    score = 1.5 * degree + 1.5 * (census["marital-status"] == "Married-civ-spouse") + (census["hours-per-week"] > 40)
    label = (score + (census["capital-gain"] > 7000) - 2.2 + noise(count) > 0).astype("i8")
    write("census", census | {"label": label})
    write("census_sql", {key.replace("-", "_"): values for key, values in census.items()} | {"label": label})


def write_heart(count: int = 1000) -> None:
    bounds = {
        "age": (29, 77),
        "trestbps": (94, 200),
        "chol": (126, 564),
        "thalach": (71, 202),
        "slope": (0, 3),
        "ca": (0, 4),
    }
    heart = {key: integers(count, *bound).astype("i8") for key, bound in bounds.items()}
    heart["oldpeak"] = RANDOM.uniform(0, 6, count).astype("f4")
    heart["thal"] = words(count, "normal", "fixed", "reversible")
    write("heart", heart | {"target": ((heart["thal"] == "reversible") | (heart["oldpeak"] > 4)).astype("i8")})


def write_clicks(count: int = 4000) -> None:
    ids = RANDOM.integers(1, 5383, (count, 10))
    ids[:, 0] = integers(count, 1, 40)
    ids[:, 8:] *= RANDOM.integers(0, 2, (count, 1))
    label = RANDOM.normal(size=40)[ids[:, 0]] + noise(count) > 0
    write("frappe", {"feature": ids.astype("i8"), "label": label[:, None].astype("i8")})
    numbers = {f"I{i}": integers(count, 0, 50 * i) for i in range(1, 14)}
    codes = {f"C{i}": integers(count, 0, 30 + i) for i in range(1, 27)}
    bias = RANDOM.normal(size=31)
    score = bias[codes["C1"]] + bias[codes["C2"] % 30] * 0.5 + (numbers["I1"] > 25) - 0.5
    clicks = numbers | {key: np.array([f"{code:08x}" for code in values]) for key, values in codes.items()}
    clicks["label"] = (score + noise(count) > 0).astype("i8")
    write("dac", clicks)
    few = {key: values[:250] if key[0] == "C" else values[:250].astype("f4") for key, values in clicks.items()}
    write("wdl", few)
    with (FOLDER / "criteo_sample.txt").open("w") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(names := ["label", *numbers, *codes])
        rows.writerows(zip(*(clicks[name][:200] for name in names), strict=True))


def write_iris() -> None:
    iris = load_iris()
    names = ["Iris-setosa", "Iris-versicolor", "Iris-virginica"]
    rows = [",".join(map(str, row)) for row in iris.data]
    (FOLDER / "iris.data").write_text(
        "".join(f"{row},{names[kind]}\n" for row, kind in zip(rows, iris.target, strict=True))
    )
    order = RANDOM.permutation(150)
    for part, numbers in (("train", order[:120]), ("test", order[120:])):
        path = FOLDER / "iris" / part / "iris.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            "sepal_length,sepal_width,petal_length,petal_width,class",
            *(f"{rows[i]},{iris.target[i]}" for i in numbers),
        ]
        path.write_text("\n".join(lines) + "\n")


FOLDER.mkdir(parents=True, exist_ok=True)
for write_part in (write_digits, write_census, write_heart, write_clicks, write_iris):
    write_part()
