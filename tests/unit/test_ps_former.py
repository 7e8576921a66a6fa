"""A training on parameter servers begins from what a former one has left: its servers' checkpoints, its directory, or rows of an export."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
from parameter_servers import (
    ADAM,
    ASYNCHRONOUS,
    PARAMETERS,
    TABLES,
    Model,
    assert_holds,
    await_checkpoint,
    servers,
)

from trainmaster.ps.client import Client, ServerError, TableSpec, Updates
from trainmaster.ps.optimizers import Adam
from trainmaster.ps.storage.former import Unusable, is_former, newest_former
from trainmaster.ps.storage.restoring import restore

IDS = numpy.arange(-3, 40)


def define(client: Client, **changes: Any) -> None:
    client.define(**{"dense": PARAMETERS, "tables": TABLES, "optimizer": ADAM, "updates": ASYNCHRONOUS, **changes})


def push(client: Client, model: Model, rate: float | None = None) -> None:
    dense = {name: numpy.full(value.shape, 0.25, numpy.float32) for name, value in PARAMETERS.items()}
    rows = {"user": (IDS, numpy.full((len(IDS), 4), 0.5, numpy.float32))}
    client.push(client.pull(dense=False).version, dense, rows, learning_rate=rate)
    model.push(dense, rows, rate)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    """The directory of a job of two servers, each of which has kept its own files; and what they held in version 2."""
    folder, model = tmp_path_factory.mktemp("former"), Model(Adam(0.01))
    with servers(folder / "run", 2) as group, group.client() as client:
        define(client)
        for _ in range(2):
            push(client, model)
            await_checkpoint(client, client.checkpoint())
    for version in (1, 2):
        for index in (0, 1):
            place = folder / "job" / "files" / f"ps-{index}.1.abc" / f"version-{version}"
            place.mkdir(parents=True)
            names = [f"variables-{index}-of-2.ckpt", *(["manifest-of-2.json"] if not index else [])]
            for name in names:
                shutil.copyfile(group.directory / f"version-{version}" / name, place / name)
    return folder / "job", model


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.full), 2, 3])
def test_each_server_finds_its_rows_among_the_shares_of_all(
    left: tuple[Path, Model], tmp_path: Path, count: int
) -> None:
    directory, model = left
    with servers(tmp_path, count, flags=("--init", str(directory))) as group, group.client() as client:
        define(client)
        assert_holds(client, model)


def test_a_share_that_is_missing_or_damaged_is_named(left: tuple[Path, Model], tmp_path: Path) -> None:
    directory = tmp_path / "job"
    shutil.copytree(left[0], directory)
    assert is_former(str(directory))
    assert newest_former(str(directory)).version == 2
    share = directory / "files" / "ps-1.1.abc" / "version-2" / "variables-1-of-2.ckpt"
    content = share.read_bytes()
    share.write_bytes(content[:-5])
    with pytest.raises(Unusable, match=rf"variables-1-of-2.ckpt has .* it was cut short: .*remove {directory}"):
        newest_former(str(directory))
    share.write_bytes(content[:-5] + b"12345")
    with pytest.raises(Unusable, match=r"variables-1-of-2.ckpt is damaged"):
        newest_former(str(directory))
    with pytest.raises(Unusable, match=r"variables-1-of-2.ckpt is damaged"):
        newest_former(str(directory), 0, 3)
    assert newest_former(str(directory), 0, 2).version == 2, "server 1 looks at its share itself"
    share.unlink()
    with pytest.raises(Unusable, match=r"the share of server 1 is missing: no version-2/variables-1-of-2.ckpt"):
        newest_former(str(directory))
    (directory / "files" / "ps-0.1.abc" / "version-2" / "manifest-of-2.json").unlink()
    assert newest_former(str(directory)).version == 1, "as the error has said"
    assert not is_former(str(tmp_path / "none"))
    with pytest.raises(Unusable, match="has no whole checkpoint of parameter servers"):
        newest_former(str(tmp_path))


def test_updates_and_learning_rate_of_the_new_training_hold(left: tuple[Path, Model], tmp_path: Path) -> None:
    updates, optimizer = (
        Updates(grads_to_wait=2, checkpoint_steps=7, tolerance=1),
        {"name": "Adam", "learning_rate": 1.0},
    )
    tables = {**TABLES, "user": TableSpec(4, seed=5, evict_unused=1000.0)}
    with servers(tmp_path, 2, flags=("--init", str(left[0]))) as group, group.client() as client:
        for changes, place in (
            ({"tables": {**TABLES, "user": TableSpec(8, seed=5)}}, "tables.user.dimension: 4, and 8 now"),
            ({"optimizer": {"name": "SGD"}}, 'optimizer.name: "Adam", and "SGD" now'),
            ({"tables": {}}, "tables.item: "),
        ):
            with pytest.raises(ServerError, match=f"their checkpoint is of another model or optimizer: {place}"):
                define(client, **changes)
        define(client, updates=updates, optimizer=optimizer, tables=tables)
        with group.client("worker:1") as other:
            with pytest.raises(ServerError, match=r"the servers have another definition: optimizer\.learning_rate"):
                define(other)
            define(other, updates=updates, optimizer=optimizer, tables=tables)
            for each in (client, other):
                gradient = numpy.ones(3, numpy.float32)
                each.push(2, {"bias": gradient})
            assert client.pull().version == 3
        before = left[1].dense["bias"]
        moved = abs(client.pull().dense["bias"] - before).max()
        assert moved > 0.1, "the new learning rate"
        group.kill()
        group.begin()
        define(client, updates=updates, optimizer=optimizer, tables=tables)
        assert abs(client.pull().dense["bias"] - before).max() == moved


@pytest.mark.parametrize("count", [1, 2])
def test_the_next_job_may_go_on_in_the_directory_of_a_former_one(tmp_path: Path, count: int) -> None:
    """Its workers' attempts begin anew, and what they push before its first checkpoint survives a kill."""
    model = Model(Adam(0.01))
    with servers(tmp_path, count) as group, group.client(attempt=2) as client:
        define(client)
        push(client, model)
        await_checkpoint(client, client.checkpoint())
        push(client, model)  # is in the log alone
    with servers(tmp_path, count, token="the next job's") as group, group.client() as client:
        define(client, updates=Updates(tolerance=None, keep_checkpoints=3))
        assert_holds(client, model)
        push(client, model)
        group.kill()
        group.begin()
        assert_holds(client, model)
        push(client, model)
        assert_holds(client, model)
        with pytest.raises(ServerError, match="the servers have another definition"):
            define(client)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_push_that_waits_since_a_former_job_makes_a_version_with_the_next_ones(tmp_path: Path, count: int) -> None:
    """The former worker had restarted, and the next job's workers have a first attempt."""
    model, gradient = Model(Adam(0.01)), numpy.ones(3, numpy.float32)
    in_pairs = Updates(grads_to_wait=2)
    with servers(tmp_path, count) as group, group.client(attempt=2) as client:
        define(client, updates=in_pairs)
        assert client.push(0, {"bias": gradient}) == 0
    with servers(tmp_path, count, token="the next job's") as group, group.client() as client:
        define(client, updates=in_pairs)
        assert client.push(0, {"bias": 3 * gradient}) == 1
        model.push({"bias": 2 * gradient}, {})
        assert client.push(1, {"bias": gradient}) == 1
        group.kill()
        group.begin()
        assert client.push(1, {"bias": gradient}) == 2
        model.push({"bias": gradient}, {})
        assert_holds(client, model)
        group.kill()
    for index in range(3):  # also onto another number of servers
        shard, _ = restore(str(group.directory), index, 3, print)
        assert (shard.version, len(shard.drafts)) == (2, 0)


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.full), 2])
def test_a_table_may_begin_with_rows_of_an_export(tmp_path: Path, count: int) -> None:
    rows = numpy.arange(4 * len(IDS), dtype=numpy.float32).reshape(-1, 4)
    with servers(tmp_path, count) as group, group.client() as client:
        define(client)
        client.seed("user", IDS, rows)
        group.kill()
        group.begin()
        assert (client.pull(rows={"user": IDS}).rows["user"] == rows).all()
        group.kill()
        for index in range(3):
            shard, _ = restore(str(group.directory), index, 3, print)
            own = index == IDS % 3
            assert (shard.pull([], {"ids:user": IDS[own]}, 0)["rows:user"] == rows[own]).all()
        group.begin()
        client.push(0, rows={"user": (IDS[:1], numpy.ones((1, 4), numpy.float32))})
        client.seed("user", IDS, rows)  # by a worker that comes late
        pulled = client.pull(rows={"user": IDS}).rows["user"]
        assert (pulled[1:] == rows[1:]).all()
        assert (pulled[0] != rows[0]).all()
