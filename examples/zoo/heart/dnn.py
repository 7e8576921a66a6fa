"""Heart disease by 13 columns of a patient, as in the Cleveland data: ages in buckets, `thal` by a vocabulary, the rest normalized."""

import keras
import tensorflow as tf
from keras import layers

from trainmaster.elasticdl.preprocessing import Discretization, IndexLookup, Normalizer
from trainmaster.zoo import Mode

NUMBERS = {
    "trestbps": (147, 31),
    "chol": (345, 126),
    "thalach": (137, 38),
    "oldpeak": (3.1, 1.8),
    "slope": (2, 1),
    "ca": (1.5, 1.1),
}
FLAGS = ("sex", "cp", "fbs", "restecg", "exang")
AGES = [18, 25, 30, 35, 40, 45, 50, 55, 60, 65]
COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "target",
)


def custom_model():
    inputs = {name: keras.Input((1,), name=name) for name in (*NUMBERS, *FLAGS, "age")}
    inputs["thal"] = keras.Input((1,), name="thal", dtype="string")
    age = layers.Embedding(len(AGES) + 1, 8)(Discretization(bins=AGES)(inputs["age"]))
    thal = layers.Embedding(4, 8)(IndexLookup(["normal", "fixed", "reversible"])(inputs["thal"]))
    parts = [layers.Flatten()(age), layers.Flatten()(thal), inputs["age"] / 60]
    parts += [Normalizer(subtractor=mean, divisor=spread)(inputs[name]) for name, (mean, spread) in NUMBERS.items()]
    parts += [inputs[name] for name in FLAGS]
    x = layers.Dense(32, activation="relu")(layers.Concatenate()(parts))
    return keras.Model(inputs, layers.Dense(1)(x))


def loss(labels, predictions):
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=5e-3):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(record):
        row = dict(zip(COLUMNS, tf.unstack(record, len(COLUMNS)), strict=True))
        label = tf.strings.to_number(row.pop("target"))[None]
        features = {name: (text if name == "thal" else tf.strings.to_number(text))[None] for name, text in row.items()}
        return features if mode == Mode.PREDICTION else (features, label)

    dataset = dataset.map(parse)
    return dataset.shuffle(1000, seed=0) if mode == Mode.TRAINING else dataset


def eval_metrics_fn():
    return {
        "auc": keras.metrics.AUC(from_logits=True),
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.0),
    }
