"""Write the data of the zoo's models, once: DIRECTORY/NAME/train and DIRECTORY/NAME/test.

    python data.py iris heart            # or: all
    python data.py clicks --to /tmp/data --rows 1000000

| name | what | made by | format | a record |
|---|---|---|---|---|
| digits | 1,797 handwritten digits, enlarged to 28 x 28 | scikit-learn | RecordIO | a byte for the label, 784 for the pixels |
| images | 10 kinds of coloured shapes, 32 x 32 | a seed | RecordIO | as CIFAR-10's: a byte for the label, 3,072 for the pixels |
| iris | 150 flowers | scikit-learn | CSV | four lengths in cm, the kind |
| heart | patients, with a risk that some of their figures make | a seed | CSV | 13 columns and the target, as the Cleveland data |
| census | people, with an income that their columns make likely | a seed | CSV | 14 columns and the label, as the Adult data |
| clicks | clicks on advertisements, by pairs of features | a seed | RecordIO | 26 ids and the label, 32 bits each |
| sums | lines as "27+58=85" | a seed | text | a line |

The same seed makes the same files. The results of the models show only that they learn what is in these data.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from trainmaster.runtime.formats import recordio

FIELDS = 26  # of clicks
PARTS = 4  # files of the training data
HELD_OUT = 5  # one in so many records is for the test


def write_recordio(path: Path, records: Iterable[bytes]) -> None:
    with recordio.Writer(path) as writer:
        for record in records:
            writer.write(record)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def split(folder: Path, ending: str, records: Sequence, write: Callable[[Path, Iterable], None]) -> None:
    """Write one record in five to `test`, the others to the files of `train`."""
    test = records[::HELD_OUT]
    train = [record for number, record in enumerate(records) if number % HELD_OUT]
    for name, kept, parts in (("train", train, PARTS), ("test", test, 1)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part in range(parts):
            chosen = kept[part * len(kept) // parts : (part + 1) * len(kept) // parts]
            write(folder / name / f"part-{part:02}{ending}", chosen)
        print(f"{folder / name}: {len(kept)} records in {parts} files")


def split_csv(folder: Path, header: Sequence[str], rows: Iterable[Sequence]) -> None:
    def write(path: Path, rows: Iterable[Sequence]) -> None:
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])

    split(folder, ".csv", list(rows), write)


def digits(folder: Path, rows: int) -> None:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))[: rows or None]
    large = np.kron(data.images[order], np.ones((1, 3, 3)))  # 24 x 24
    pixels = np.pad(large * 15.9, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    records = [bytes([label]) + image.tobytes() for label, image in zip(data.target[order], pixels, strict=True)]
    split(folder, ".recordio", records, write_recordio)


def images(folder: Path, rows: int) -> None:
    random, count = np.random.default_rng(0), rows or 3000
    y, x = np.mgrid[0:32, 0:32] / 31 - 0.5
    records = []
    for label in random.integers(0, 10, count):
        turn, away_y, away_x, size = random.uniform(0, 0.4), *random.uniform(-0.12, 0.12, 2), random.uniform(0.25, 0.35)
        down, right = y - away_y, x - away_x
        across = right * np.cos(turn) + down * np.sin(turn)
        along = down * np.cos(turn) - right * np.sin(turn)
        shapes = (
            np.hypot(right, down) < size, np.abs(np.hypot(right, down) - size) < 0.06, np.maximum(abs(across), abs(along)) < size * 0.8,
            abs(across) + abs(along) < size, (along < size * 0.8) & (abs(across) * 2 < along + size), abs(across) < 0.07,
            abs(along) < 0.07, np.minimum(abs(across), abs(along)) < 0.06, np.sin(across * 40) > 0, np.sin(along * 40) > 0,
        )  # fmt: skip
        colours = random.uniform(0.2, 1, 3), random.uniform(0, 0.5, 3)
        picture = np.where(shapes[label][..., None], colours[0], colours[1]) + random.normal(0, 0.05, (32, 32, 3))
        records.append(bytes([label]) + (picture.clip(0, 1) * 255).astype(np.uint8).tobytes())
    split(folder, ".recordio", records, write_recordio)


def iris(folder: Path, rows: int) -> None:
    from sklearn.datasets import load_iris

    data = load_iris()
    order = np.random.default_rng(0).permutation(len(data.target))[: rows or None]
    header = ("sepal_length", "sepal_width", "petal_length", "petal_width", "class")
    split_csv(folder, header, ([*data.data[number], data.target[number]] for number in order))


def heart(folder: Path, rows: int) -> None:
    random, count = np.random.default_rng(0), rows or 3000
    columns = {
        "age": random.integers(29, 78, count), "sex": random.integers(0, 2, count), "cp": random.integers(0, 5, count),
        "trestbps": random.integers(94, 201, count), "chol": random.integers(126, 565, count), "fbs": random.integers(0, 2, count),
        "restecg": random.integers(0, 3, count), "thalach": random.integers(71, 203, count), "exang": random.integers(0, 2, count),
        "oldpeak": random.uniform(0, 6.2, count).round(1), "slope": random.integers(1, 4, count), "ca": random.integers(0, 4, count),
        "thal": random.choice(["normal", "fixed", "reversible"], count),
    }  # fmt: skip
    risk = (
        (columns["age"] - 54) / 12 + columns["sex"] + (columns["cp"] == 4) * 2 + (columns["chol"] - 330) / 150
        - (columns["thalach"] - 140) / 30 + columns["exang"] + columns["oldpeak"] / 2 + columns["ca"]
        + (columns["thal"] == "reversible") * 2 - 5.5
    )  # fmt: skip
    columns["target"] = (random.logistic(0, 0.5, count) < risk).astype(int)
    split_csv(folder, list(columns), zip(*(column.tolist() for column in columns.values()), strict=True))


def census(folder: Path, rows: int) -> None:
    random, count = np.random.default_rng(0), rows or 4000
    schooling = random.integers(1, 17, count)
    words = {
        "workclass": ["Private", "Self-emp", "Federal-gov", "Local-gov", "State-gov"],
        "education": [f"{year}-years" for year in range(1, 17)],
        "marital_status": ["Married", "Divorced", "Never-married", "Widowed"],
        "occupation": ["Tech", "Craft", "Other", "Sales", "Executive", "Professional", "Clerical", "Farming"],
        "relationship": ["Wife", "Own-child", "Husband", "Not-in-family", "Unmarried"],
        "race": ["A", "B", "C", "D", "E"],
        "sex": ["Female", "Male"],
        "native_country": [f"country-{number}" for number in range(40)],
    }
    chosen = {name: random.integers(0, len(options), count) for name, options in words.items()}
    chosen["education"] = schooling - 1
    columns = {
        "age": random.integers(17, 91, count), "fnlwgt": random.integers(12_000, 1_500_000, count), "education_num": schooling,
        "capital_gain": np.where(random.random(count) < 0.1, random.integers(100, 100_000, count), 0),
        "capital_loss": np.where(random.random(count) < 0.05, random.integers(100, 4_400, count), 0),
        "hours_per_week": random.integers(1, 100, count),
    }  # fmt: skip
    pay = np.array([1.0, -0.5, -1.5, 0.5, 2.0, 1.5, -0.5, -1.0])
    likely = (
        (schooling - 9) / 3 + pay[chosen["occupation"]] + (chosen["marital_status"] == 0) * 1.5 + (columns["hours_per_week"] - 45) / 25
        + (columns["capital_gain"] > 5000) * 3 - ((columns["age"] - 50) / 20) ** 2
        + (chosen["occupation"] == 4) * (chosen["education"] > 11) * 1.5  # a pair, as wide & deep is made for
    )  # fmt: skip
    label = (random.logistic(0, 0.6, count) < likely - 0.8).astype(int)
    columns |= {name: np.array(options)[chosen[name]] for name, options in words.items()} | {"label": label}
    split_csv(folder, list(columns), zip(*(column.tolist() for column in columns.values()), strict=True))


def clicks(folder: Path, rows: int, ids: int = 520) -> None:
    """Labels come of the features' own weights, and of the inner products of hidden vectors of some pairs of fields."""
    random, count, each = np.random.default_rng(0), rows or 20_000, ids // FIELDS
    values = (random.random((count, FIELDS)) ** 3 * each).astype(np.int64)  # small ones are frequent
    features = values + np.arange(FIELDS) * each
    weights, vectors = random.normal(0, 0.3, ids), random.normal(0, 1, (ids, 2))
    score = weights[features].sum(1)
    for left, right in ((0, 1), (2, 3), (4, 5)):
        score += (vectors[features[:, left]] * vectors[features[:, right]]).sum(1)
    label = (random.logistic(0, 0.5, count) < score - score.mean()).astype(np.int64)
    records = np.column_stack([features, label]).astype("<i4")
    split(folder, ".recordio", [record.tobytes() for record in records], write_recordio)


def sums(folder: Path, rows: int) -> None:
    random = np.random.default_rng(0)
    pairs = [(left, right) for left in range(100) for right in range(100)]
    lines = [f"{left}+{right}={left + right}" for left, right in random.permutation(pairs)[: rows or None]]
    split(folder, ".txt", lines, write_lines)


MAKERS = {made.__name__: made for made in (digits, images, iris, heart, census, clicks, sums)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=[*MAKERS, "all"])
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "data", help="the directory")
    parser.add_argument("--rows", type=int, default=0, help="records in all; 0: as many as the tests take")
    parser.add_argument("--ids", type=int, default=520, help="of clicks: features in all")
    options = parser.parse_args()
    for name in MAKERS if "all" in options.names else options.names:
        if (options.to / name / "test").is_dir() and not options.rows:
            continue  # `test` is what is written last
        more = {"ids": options.ids} if name == "clicks" else {}
        MAKERS[name](options.to / name, options.rows, **more)


if __name__ == "__main__":
    sys.exit(main())
