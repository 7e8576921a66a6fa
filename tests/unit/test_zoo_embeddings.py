"""Embedding layers with tables give the rows that they should, and get the gradients that the frameworks' own layers get."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from parts import need_frameworks

from trainmaster.core.spec import quantities
from trainmaster.ps.specification import TableSpec
from trainmaster.zoo.embeddings.durations import parse_seconds
from trainmaster.zoo.embeddings.in_process import InProcess
from trainmaster.zoo.errors import BadModel
from trainmaster.zoo.flags import parse
from trainmaster.zoo.models import server_strategy
from trainmaster.zoo.models.strategies import bound_lives

PROGRAMS = Path(__file__).parents[1] / "programs"
LIMIT = 300.0  # s; imports of TensorFlow on a machine with other work


def facts_of(*command: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / command[0]), *command[1:]], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("torch", marks=pytest.mark.full)])
def test_layers_of_keras_have_tables(backend: str) -> None:
    need_frameworks("keras", backend)
    facts = facts_of("embeddings_keras.py", backend)
    names = ["dense", "spec", "sum", "mean", "sqrtn", "masked", "config", "gradient", "loss", "is better", "filled"]
    if backend == "tensorflow":
        names += ["ragged", "ragged sum", "ragged mean", "sparse sum", "sparse mean"]
        assert "needs a combiner" in facts["sparse alone"]
    assert [name for name in names if facts[name] is not True] == []
    assert facts["others"] == [True] * 4
    assert max(facts["difference"].values()) < 1e-4, facts["difference"]
    assert facts["mask"] == [[True, True, True], [False, True, True]]
    assert facts["negative"].startswith("the table plain got the id -1, and its ids are 0 to 9\n  have the feed")
    assert facts["beyond"].startswith(
        "the table plain got the id 11, and its ids are 0 to 9\n  give it 12 rows or more (input_dim; of PyTorch num_embeddings)"
    )
    assert "must be sum, mean or sqrtn" in facts["combiner"]
    assert "has no bound" in facts["unbounded glorot"]
    assert "is trained by `python -m trainmaster.zoo train` alone" in facts["fit"]
    assert facts["moved"] == ["the embedding large of 160 bytes is on the parameter servers"]
    assert [name.rpartition("/")[2] for name in facts["variables"]] == ["bias", "kernel"]
    assert facts["ids"] == {"rows": [0, 1, 2, 3], "large": [0, 1, 2, 3]}
    assert facts["is plain"] == ["keras", 1]
    assert facts["tables"] == []
    assert "its rows are not those of its initializer" in facts["stays"][0]
    assert facts["optimizers"]["AdamW"][0]["weight_decay"] == 0.004
    assert facts["optimizers"]["clipped"][1] == 2.0
    assert all("parameter servers have" in text for text in facts["refused"].values()), facts["refused"]


def test_modules_of_pytorch_have_tables() -> None:
    need_frameworks("torch")
    facts = facts_of("embeddings_torch.py")
    names = ["dense", "sum", "mean", "sqrtn", "offsets", "outputs", "gradients", "is better", "filled", "is plain"]
    assert [name for name in names if facts[name] is not True] == []
    assert "got the id -1, and its ids are 0 to 9" in facts["negative"]
    assert "its ids are 0 to 9" in facts["beyond"]
    assert "is trained by" in facts["fit"]
    assert facts["moved"] == ["the embedding large of 3,200 bytes is on the parameter servers"]
    assert facts["parameters"] == ["out.bias", "out.weight"]
    assert facts["optimizers"]["SparseAdam"]["convention"] == "keras"
    assert all("parameter servers have" in text for text in facts["refused"].values()), facts["refused"]


def test_tables_in_this_process_are_saved_and_restored_with_their_slots() -> None:
    def begun() -> InProcess:
        client = InProcess()
        client.define({"w": [1.0, 2.0]}, {"user": TableSpec(2)}, {"name": "Adam", "learning_rate": 0.1})
        return client

    def push(client: InProcess) -> None:
        pulled = client.pull(rows={"user": [3, 5]})
        client.push(pulled.version, {"w": [0.5, -0.5]}, {"user": ([3, 5], [[1.0, 2.0], [0.5, 0.0]])})

    one, other = begun(), begun()
    push(one)
    other.restore(one.state())
    for client in (one, other):
        push(client)
    pulled = [client.pull(rows={"user": [3, 4, 5]}) for client in (one, other)]
    assert one.version == other.version == 2
    assert pulled[0].rows["user"].tobytes() == pulled[1].rows["user"].tobytes()
    assert pulled[0].dense["w"].tobytes() == pulled[1].dense["w"].tobytes()
    assert one.ids("user").tolist() == [3, 4, 5]
    with pytest.raises(BadModel, match="of another model"):
        other.restore({**one.state(), "tables": {}})


@pytest.mark.parametrize(("text", "seconds"), [("7d", 604800.0), ("1h30m", 5400.0), ("250ms", 0.25), ("none", None)])
def test_the_life_of_rows_is_written_as_in_the_job_file(text: str, seconds: float | None) -> None:
    assert parse_seconds(text) == quantities.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "7x", "7d 3"])
def test_what_is_no_duration_is_reported(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: write a number and a unit"):
        parse_seconds(text)


def test_the_life_of_rows_may_be_said_for_all_tables() -> None:
    tables = SimpleNamespace(specs={"brief": TableSpec(4, evict_unused=60.0), "other": TableSpec(4)})
    bound_lives(tables, "7d")
    assert {name: spec.evict_unused for name, spec in tables.specs.items()} == {"brief": 60.0, "other": 604800.0}
    with pytest.raises(BadModel, match="--evict_unused"):
        bound_lives(tables, "soon")


def test_what_is_read_ahead_is_reported_behind_the_step() -> None:
    reported: list[str] = []
    windows = SimpleNamespace(done=lambda shard, records: reported.append(shard))
    held = server_strategy._HeldReports(windows)
    held.hold()
    windows.done("first", 10)
    assert reported == []
    held.release()
    assert reported == ["first"]
    windows.done("second", 10)
    assert reported == ["first", "second"]


def test_parameters_that_are_seldom_fetched_need_a_tolerance() -> None:
    _, flags = parse(["train", "--model_zoo", "zoo", "--model_def", "m.f", "--get_model_steps", "3"])
    with pytest.raises(BadModel, match="would be refused"):
        server_strategy._updates(flags)
    assert server_strategy._updates({**flags, "sync_version_tolerance": 2}).tolerance == 2
    assert server_strategy._updates({**flags, "use_async": True}).tolerance is None


def test_an_error_while_reading_ahead_is_raised_where_the_batch_is_asked_for() -> None:
    def batches() -> Iterator[Any]:
        yield "one"
        raise BadModel("a record cannot be read")

    source = batches()
    assert server_strategy._Ahead(source).result() == "one"
    with pytest.raises(BadModel, match="cannot be read"):
        server_strategy._Ahead(source).result()
