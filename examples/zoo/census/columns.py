"""Shared code of the census models: the columns, their preprocessing by ElasticDL's layers, loss, optimizer, feed and metrics."""

import keras
import tensorflow as tf
from keras import layers

from trainmaster.elasticdl.preprocessing import Discretization, Hashing, LogRound
from trainmaster.zoo import Mode

WORDS = {
    "workclass": 16, "education": 64, "marital_status": 16, "occupation": 32, "relationship": 16, "race": 16, "sex": 8,
    "native_country": 128,
}  # fmt: skip
NUMBERS = {
    "age": 60,
    "education_num": 10,
    "hours_per_week": 50,
    "capital_gain": 50_000,
    "capital_loss": 2_000,
}  # divided by
BINS = {
    "age": [20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 80], "education_num": list(range(2, 17)),
    "hours_per_week": [10, 20, 30, 40, 50, 60, 80],
}  # fmt: skip
COLUMNS = (
    "age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week", *WORDS, "label",
)  # fmt: skip
PAIR = ("occupation", "education")  # crossed by the wide part


def inputs():
    numbers = {name: keras.Input((1,), name=name) for name in NUMBERS}
    return numbers | {name: keras.Input((1,), name=name, dtype="string") for name in (*WORDS, "pair")}


def ids(given):
    """Return the ids of all columns that have one, as name -> (ids, how many there are)."""
    found = {name: (Hashing(bins)(given[name]), bins) for name, bins in WORDS.items()}
    found |= {name: (Discretization(bins=bins)(given[name]), len(bins) + 1) for name, bins in BINS.items()}
    return found | {"capital_gain": (LogRound(num_bins=20, base=2)(given["capital_gain"]), 20)}


def numbers(given):
    return [given[name] / divisor for name, divisor in NUMBERS.items()]


def embedded(given, dimension):
    return [layers.Flatten()(layers.Embedding(count, dimension)(found)) for found, count in ids(given).values()]


def loss(labels, predictions):
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=3e-3):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(record):
        row = dict(zip(COLUMNS, tf.unstack(record, len(COLUMNS)), strict=True))
        features = {name: tf.strings.to_number(row[name])[None] for name in NUMBERS}
        features |= {name: row[name][None] for name in WORDS}
        features["pair"] = tf.strings.join([row[name] for name in PAIR], "_")[None]
        return features if mode == Mode.PREDICTION else (features, tf.strings.to_number(row["label"])[None])

    dataset = dataset.map(parse)
    return dataset.shuffle(1000, seed=0) if mode == Mode.TRAINING else dataset


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(from_logits=True), "accuracy": keras.metrics.BinaryAccuracy(threshold=0.0)}
