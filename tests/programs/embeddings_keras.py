"""Embedding layers with tables, of Keras: `embeddings_keras.py BACKEND DIRECTORY`. Prints facts as JSON."""

import json
import os
import sys
from typing import Any

os.environ["KERAS_BACKEND"] = sys.argv[1]
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy

from trainmaster.ps.initializers import Normal
from trainmaster.zoo.embeddings import Embedding
from trainmaster.zoo.embeddings.in_process import InProcess
from trainmaster.zoo.embeddings.lookups import BatchIds
from trainmaster.zoo.errors import BadModel
from trainmaster.zoo.model_file import ModelFile
from trainmaster.zoo.models import server_optimizers
from trainmaster.zoo.models.keras_model import KerasModel

facts: dict[str, Any] = {}
IDS = numpy.array([[1, 2, 2], [0, 3, 1]])


def table(layer: Any) -> Any:
    return layer.own.pull(numpy.arange(10))


def refusal(function: Any) -> str:
    try:
        function()
    except (BadModel, ValueError) as error:
        return str(error)
    return ""


def numbers(tensor: Any) -> Any:
    return keras.ops.convert_to_numpy(tensor)


def close(one: Any, other: Any) -> bool:
    return bool(numpy.allclose(numbers(one), other, atol=1e-6))


def layers() -> None:
    plain = Embedding(4, 10, keras.initializers.RandomNormal(stddev=0.5, seed=3), name="plain")
    rows = table(plain)
    facts["dense"] = close(plain(IDS), rows[IDS])
    facts["spec"] = plain.spec.initializer == Normal(0.0, 0.5) and plain.spec.seed == 3
    for name, scale in (("sum", 1), ("mean", 3), ("sqrtn", numpy.sqrt(3))):
        layer = Embedding(4, 10, combiner=name, name=f"by_{name}")
        facts[name] = close(layer(IDS), table(layer)[IDS].sum(1) / scale)
    masked = Embedding(4, 10, combiner="mean", mask_zero=True, name="masked")
    facts["masked"] = close(masked(IDS)[1], table(masked)[[3, 1]].mean(0))
    facts["mask"] = numbers(Embedding(4, 10, mask_zero=True).compute_mask(IDS)).tolist()
    again = Embedding.from_config(plain.get_config())
    facts["config"] = again.get_config() == plain.get_config()
    facts["negative"] = refusal(lambda: plain(IDS - 1))
    facts["beyond"] = refusal(lambda: plain(IDS + 8))
    facts["combiner"] = refusal(lambda: Embedding(4, combiner="max", name="bad"))
    facts["unbounded glorot"] = refusal(lambda: Embedding(4, None, "glorot_uniform", name="wide")(IDS))
    facts["fit"] = refusal(lambda: plain(IDS, training=True))


def ragged() -> None:
    import tensorflow as tf

    ids = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int32)
    for name in ("sum", "mean"):
        layer = Embedding(4, 10, combiner=name, name=f"ragged_{name}")
        rows = table(layer)
        first = rows[1] + rows[2] if name == "sum" else (rows[1] + rows[2]) / 2
        expected = numpy.stack([first, numpy.zeros(4), rows[3]])
        facts[f"ragged {name}"] = close(layer(ids), expected)
        facts[f"sparse {name}"] = close(layer(ids.to_sparse()), expected)
    layer = Embedding(4, 10, name="ragged_alone")
    facts["ragged"] = close(layer(ids).flat_values, table(layer)[[1, 2, 3]])
    facts["sparse alone"] = refusal(lambda: layer(ids.to_sparse()))


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.large = (
            Embedding(4, 10, combiner="sum", name="rows"),
            keras.layers.Embedding(10, 4, name="large"),
        )
        self.out = keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        return self.out(self.rows(ids) + keras.ops.sum(self.large(ids), -2))


def model(made: Any) -> KerasModel:
    def loss(labels: Any, outputs: Any) -> Any:
        return keras.ops.mean(keras.ops.square(outputs - labels))

    parts = ModelFile("a.py", lambda: made, loss, lambda: keras.optimizers.SGD(0.1))
    wrapped = KerasModel(made, parts)
    if not wrapped.is_built:
        wrapped.build(keras.ops.convert_to_tensor(IDS))
    return wrapped


def gradients() -> None:
    """The gradients of rows are those of Keras's own embeddings, summed by id; a moved layer comes back as it was."""
    wrapped = model(Subclassed())
    said: list[str] = []
    wrapped.use_tables(100, said.append)
    wrapped.prepare_training()
    tables = wrapped.tables
    facts["moved"] = said
    facts["variables"] = sorted(tables.dense())
    client = InProcess()
    client.define(tables.dense(), tables.specs, {"name": "SGD", "learning_rate": 0.1})
    tables.source = client
    features, labels = keras.ops.convert_to_tensor(IDS), keras.ops.ones((2, 1))
    ids = tables.ids(features)
    facts["ids"] = {name: distinct.tolist() for name, distinct in ids.items()}
    pulled = client.pull(rows=ids)
    before = numbers(tables.outputs(features))
    loss, _, dense, rows = tables.gradients(features, labels, ids, pulled.rows)
    facts["others"] = []  # where the places that were noted are not those of what is looked up, they are searched for
    for places in (
        {name: each[::-1] for name, each in ids.places.items()},
        {name: each[:1] for name, each in ids.places.items()},
    ):
        others = tables.gradients(features, labels, BatchIds(ids, places), pulled.rows)
        facts["others"] += [close(others[3][name], gradient) for name, gradient in rows.items()]
    kernel = tables.dense()[next(name for name in dense if "kernel" in name)][:, 0]
    for_each = 2 * (before - 1) / 2 @ kernel[None]  # of each example's sum of rows
    counts = numpy.array([[0, 1, 2, 0], [1, 1, 0, 1]])  # of each distinct id in each example
    facts["gradient"] = close(rows["rows"], counts.T @ for_each) and close(rows["large"], counts.T @ for_each)
    facts["loss"] = bool(numpy.isclose(loss, ((before - 1) ** 2).mean()))
    client.push(pulled.version, dense, {name: (ids[name], gradient) for name, gradient in rows.items()})
    tables.assign(client.pull().dense)
    after = numbers(tables.outputs(features))
    facts["is better"] = bool(((after - 1) ** 2).mean() < loss)
    filled = tables.filled()
    facts["filled"] = close(filled(features), after)
    facts["is plain"] = [type(filled.large).__module__.partition(".")[0], len(filled.large.weights)]


def moving() -> None:
    """A layer whose rows were loaded stays, and says why."""
    inputs = keras.Input((3,), dtype="int64")
    loaded = keras.layers.Embedding(10, 4, weights=[numpy.ones((10, 4))], name="loaded")
    wrapped = model(keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(loaded(inputs)))))
    said: list[str] = []
    wrapped.use_tables(100, said.append)
    facts["stays"] = said
    facts["tables"] = sorted(wrapped.tables.specs)


def optimizers() -> None:
    made = keras.optimizers
    good = {
        "SGD": made.SGD(0.1, momentum=0.9, nesterov=True), "Adam": made.Adam(0.1), "AdamW": made.AdamW(0.1),
        "Adagrad": made.Adagrad(0.1), "Ftrl": made.Ftrl(0.1), "clipped": made.SGD(0.1, global_clipnorm=2.0),
    }  # fmt: skip
    facts["optimizers"] = {name: server_optimizers.of_keras(optimizer, 0.1) for name, optimizer in good.items()}
    bad = {
        "Lion": made.Lion(),
        "clipnorm": made.SGD(clipnorm=1.0),
        "decay": made.SGD(weight_decay=0.1),
        "ams": made.Adam(amsgrad=True),
    }
    facts["refused"] = {
        name: refusal(lambda made=one: server_optimizers.of_keras(made, 0.1)) for name, one in bad.items()
    }


def alike() -> None:
    """Training by pushes is training by Keras's own optimizer: rows of a moved layer and parameters are the same after some steps.

    No id repeats in a batch: with TensorFlow, Keras squares the gradients of an id before it sums them. Each batch has all ids: Keras
    moves others too, by their momentum.
    """
    draw = numpy.random.default_rng(1)
    batches = [(draw.permutation(10).reshape(2, 5), draw.random((2, 1), numpy.float32)) for _ in range(5)]
    difference = {}
    for name in ("SGD", "Adam", "Adagrad", "Ftrl"):
        found = []
        for limit in (None, 100):
            keras.utils.set_random_seed(3)
            ids = keras.Input((5,), dtype="int64")
            rows = keras.layers.Embedding(10, 4, keras.initializers.Constant(0.1), name="rows")(ids)
            wrapped = model(
                keras.Model(ids, keras.layers.Dense(1)(keras.layers.Dense(4, "tanh")(keras.layers.Flatten()(rows))))
            )
            if limit is not None:
                wrapped.use_tables(limit, lambda text: None)
            wrapped.prepare_training()
            wrapped.optimizer = wrapped.model.optimizer = getattr(keras.optimizers, name)(0.1)
            wrapped.optimizer.build(wrapped.model.trainable_variables)
            client = InProcess()
            tables = wrapped.tables
            if tables is not None:
                client.define(tables.dense(), tables.specs, tables.optimizer()[0])
                tables.source = client
            for features, labels in batches:
                pair = keras.ops.convert_to_tensor(features), keras.ops.convert_to_tensor(labels)
                if tables is None:
                    wrapped.step(*pair)
                    continue
                distinct = tables.ids(pair[0])
                pulled = client.pull(rows=distinct)
                tables.assign(pulled.dense)
                _, _, dense, of_rows = tables.gradients(*pair, distinct, pulled.rows)
                gradients = {table: (distinct[table], gradient) for table, gradient in of_rows.items()}
                client.push(pulled.version, dense, gradients, learning_rate=tables.rate(client.version))
            if tables is not None:
                tables.assign(client.pull().dense)
            trained = wrapped.model if tables is None else tables.filled()
            found.append(numbers(trained(keras.ops.convert_to_tensor(batches[0][0]))))
        difference[name] = float(numpy.abs(found[0] - found[1]).max())
    facts["difference"] = difference


layers()
alike()
if sys.argv[1] == "tensorflow":
    ragged()
gradients()
moving()
optimizers()
print(json.dumps(facts))
