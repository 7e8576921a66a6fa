"""Real parameter servers: what workers pull is what was pushed, whoever dies, and nobody else gets in."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy
import pytest
from parameter_servers import (
    ADAM,
    ASYNCHRONOUS,
    DIMENSION,
    PARAMETERS,
    TABLES,
    TOKEN,
    Model,
    Servers,
    assert_holds,
    await_checkpoint,
    cut_short,
    define,
    push_some,
    servers,
    some_push,
)
from waiting import until

from trainmaster.client.submit.ahead import certificate_and_key
from trainmaster.ps.client import (
    Client,
    Identity,
    Refused,
    ServerError,
    ServerGone,
    StateLost,
    Superseded,
    TableSpec,
    Updates,
    deduplicated,
    summed,
)
from trainmaster.ps.initializers import Constant
from trainmaster.ps.optimizers import SGD, Adam, clip_by_global_norm, stale_learning_rate
from trainmaster.ps.storage.restoring import restore
from trainmaster.ps.tables.memory import VARIABLE
from trainmaster.ps.tables.table import BadIds
from trainmaster.ps.wire.connections import Connection, connect
from trainmaster.ps.wire.messages import PREFIX, buffers, head_of
from trainmaster.zoo.errors import BadModel
from trainmaster.zoo.models.server_strategy import ServerStrategy


@pytest.mark.parametrize(("count", "has_tls"), [(1, False), (3, False), (2, True)])
def test_servers_hold_what_one_process_would(tmp_path: Path, count: int, has_tls: bool) -> None:
    generator, model = numpy.random.default_rng(7), Model(Adam(0.01))
    options = {"has_files": False, "has_tls": has_tls}
    with servers(tmp_path, count, **options) as group, group.client() as client, group.client("worker:1") as other:
        assert define(client) == 0
        assert define(other) == 0
        assert_holds(client, model)
        for number in range(20):
            dense, rows = some_push(generator)
            assert (client, other)[number % 2].push(model.version, dense, rows) == number + 1
            model.push(dense, rows)
            assert_holds((other, client)[number % 2], model)
        ids = numpy.array([[7, 3, 7], [3, 3, 900]])
        distinct, places = deduplicated(ids)
        pulled = client.prefetch(rows={"item": distinct}).result()
        assert numpy.array_equal(pulled.rows["item"][places].reshape(6, -1), model.tables["item"].pull(ids.reshape(-1)))
        rows_of_each = [sum(table["rows"] for table in status["tables"].values()) for status in client.status()]
        assert sum(rows_of_each) == sum(map(len, model.tables.values()))
        dense, rows = some_push(generator)
        behind = client.push_and_pull(model.version, dense, rows)
        model.push(dense, rows)
        assert behind.version == model.version
        assert all(numpy.allclose(behind.dense[name], value, atol=1e-6) for name, value in model.dense.items())
        named = client.pull(["bias"])
        assert list(named.dense) == ["bias"]
        assert not named.rows


@pytest.mark.parametrize("has_tls", [False, True])
def test_large_messages_go_through_shared_memory_and_by_sockets(tmp_path: Path, has_tls: bool) -> None:
    """The first one of a size has no room in the regions yet."""
    generator = numpy.random.default_rng(3)
    with servers(tmp_path, 1, has_files=False, has_tls=has_tls) as group, group.client() as client:
        client.define({}, {"wide": TableSpec(64)}, {"name": "SGD", "learning_rate": 1.0}, ASYNCHRONOUS)
        for size in (10, 5_000, 20_000, 20_000, 100):
            ids = generator.permutation(size).astype(numpy.int64)
            before = client.pull(rows={"wide": ids})
            gradients = generator.normal(size=(size, 64)).astype(numpy.float32)
            client.push(before.version, rows={"wide": (ids, gradients)})
            after = client.pull(rows={"wide": ids})
            assert numpy.allclose(after.rows["wide"], before.rows["wide"] - gradients, atol=1e-5)


def test_half_precision_on_the_wire_is_a_choice(tmp_path: Path) -> None:
    with (
        servers(tmp_path, 2, has_files=False) as group,
        group.client() as client,
        group.client("worker:1", half=True) as half,
    ):
        define(client)
        define(half)
        ids = list(range(40))
        exact, rounded = client.pull(rows={"user": ids}), half.pull(rows={"user": ids})
        assert rounded.rows["user"].dtype == numpy.float32
        assert numpy.array_equal(rounded.rows["user"], exact.rows["user"].astype("f2").astype("f4"))
        half.push(0, rows={"user": (ids, numpy.full((40, 4), 0.1))})
        assert client.pull(at_least=1).version == 1


def test_sync_mode_makes_a_version_of_the_mean_and_refuses_what_is_stale(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(5), Model(Adam(0.01))
    with servers(tmp_path, 2, has_files=False) as group, group.client() as client, group.client("worker:1") as other:
        for worker in (client, other):
            define(worker, Updates(grads_to_wait=2, tolerance=1))
        everything = numpy.arange(40)
        for version in range(3):
            pushes = [some_push(generator) for _ in range(2)]
            assert client.push(version, *pushes[0]) == version
            assert client.pull(at_least=version).version == version
            assert other.push(version, *pushes[1]) == version + 1
            dense = {
                name: (pushes[0][0].get(name, 0) + pushes[1][0].get(name, numpy.float32(0))) / numpy.float32(2)
                for name in PARAMETERS
                if any(name in push[0] for push in pushes)
            }
            rows = {}
            for table in TABLES:
                ids = numpy.concatenate([push[1][table][0] for push in pushes])
                rows[table] = ids, numpy.concatenate([push[1][table][1] for push in pushes]) / numpy.float32(2)
            model.push(dense, rows)
            assert_holds(client, model, everything)
        assert client.push(2, *some_push(generator)) == 3  # one version old, as it may be
        with pytest.raises(Refused) as refusal:
            other.push(1, *some_push(generator))
        assert refusal.value.version == 3
        assert [status["drafts"] for status in until(lambda: settled_drafts(client, 1))] == [1, 1]


def settled_drafts(client: Client, count: int) -> list[Any]:
    status = client.status()
    return status if all(server["drafts"] == count for server in status) else []


def test_staleness_divides_the_learning_rate_and_norms_are_clipped(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(6), Model(Adam(0.01))
    with servers(tmp_path, 2, has_files=False) as group, group.client() as client:
        define(client, Updates(tolerance=None, is_modulated=True, clip_norm=0.5))
        for version, base in enumerate([0, 0, 0, 3, 1]):
            dense, rows = some_push(generator)
            assert client.push(base, dense, rows) == version + 1
            clipped = clip_by_global_norm([*dense.values(), *(gradients for _, gradients in rows.values())], 0.5)
            of_rows = zip(rows.items(), clipped[len(dense) :], strict=True)
            model.push(
                dict(zip(dense, clipped, strict=False)),
                {table: (ids, gradients) for (table, (ids, _)), gradients in of_rows},
                stale_learning_rate(0.01, version - base),
            )
        assert_holds(client, model)


def test_bad_input_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    model = Model(Adam(0.01))
    with servers(tmp_path, 2, has_files=False) as group, group.client() as client, group.client("worker:1") as other:
        with pytest.raises(ServerError, match="nothing is defined yet: call define first"):
            client.pull(rows={})
        define(client)
        with pytest.raises(ServerError, match=r"another definition: optimizer\.learning_rate: 0\.01, and 0\.5"):
            define(other, optimizer={**ADAM, "learning_rate": 0.5})
        gradient = numpy.zeros((1, 4), numpy.float32)
        for rows, message in (
            ({"item": ([1000], gradient)}, "table 'item' has ids from 0 to 999, and one is 1000"),
            ({"item": ([-1], gradient)}, "table 'item' has ids from 0 to 999, and one is -1"),
            ({"nobody": ([1], gradient)}, "there is no table 'nobody'; there are item, user"),
            ({"user": ([1], gradient[:, :3])}, r"table 'user' needs gradients of \(1, 4\), and they have \(1, 3\)"),
            ({"user": ([1], gradient * numpy.nan)}, "a gradient of 'user' is not finite"),
        ):
            kind = FloatingPointError if "finite" in message else ServerError
            with pytest.raises(kind, match=message):
                client.push(0, {"bias": numpy.ones(3)}, rows)
        with pytest.raises(ServerError, match="ids from 0 to 999"):
            client.pull(rows={"item": [5000]})
        for ids in ([0.5], [[1]], numpy.array([2**63], numpy.uint64)):
            with pytest.raises(BadIds, match="ids of table 'user' must be"):
                client.pull(rows={"user": ids})
        with pytest.raises(ValueError, match="table 'user' has gradients for 1 ids, and 2 ids"):
            client.push(0, rows={"user": ([1, 2], gradient)})
        assert_holds(client, model)
        backwards = Client(group.addresses[::-1], Identity(TOKEN))
        with pytest.raises(ServerError, match="this is server 1 of 2, and you look for server 0 of 2"):
            backwards.define({})
        alone = Client(group.addresses[:1], Identity(TOKEN))
        assert len(alone.status()) == 2  # it learns that there is another one


def test_a_stranger_gets_nowhere(tmp_path: Path) -> None:
    hello = {"op": "hello", "role": "worker", "task": "worker:0", "attempt": 1, "index": 0, "servers": 1}
    with servers(tmp_path, 1, has_files=False) as group, group.client() as client:
        define(client)
        with pytest.raises(ServerError, match="the token is not this job's"):
            Client(group.addresses, Identity("a-wrong-token")).status()
        many = {"ids": numpy.zeros(10, numpy.int64)}
        for content in (
            b"".join(buffers({"op": "pull", "dense": None, "at_least": 0}, {})),
            b"".join(buffers({**hello, "token": TOKEN}, many)),  # a payload, before the token was seen
            head_of({**hello, "token": TOKEN, "more": "x" * 5000}, 0),
            head_of({**hello, "token": "\ud800"}, 0),
            head_of({**hello, "token": TOKEN, "arrays": [["x", "f4", [2**39, 2**39, 0]]]}, 0),
            b"GET / HTTP/1.1\r\nHost: parameters\r\n\r\n",
            PREFIX.pack(b"TMPS", 2, 0, 0, 2, 0) + b"{}",
            PREFIX.pack(b"TMPS", 1, 0, 0, 2, 0) + b"[]",
            PREFIX.pack(b"TMPS", 1, 0, 0, 9, 0) + b"[" * 9,
        ):
            connection = connect(group.address(0))
            connection.socket.sendall(content)
            answer = connection.receive()
            assert answer is not None
            assert answer.header["kind"] == "refused"
            assert is_closed(connection)
            connection.close()
        assert client.pull().version == 0


def test_by_tcp_both_ends_must_be_of_the_job(tmp_path: Path) -> None:
    certificate, _ = certificate_and_key()
    with servers(tmp_path, 1, has_files=False, has_tls=True) as group, group.client() as client:
        define(client)
        for identity, message in (
            (Identity(TOKEN, certificate), "certificate verify failed"),
            (Identity(TOKEN), "the job's certificate is needed"),
        ):
            with pytest.raises(ServerGone, match=message):
                Client(group.addresses, identity, patience=0.0).status()
        with pytest.raises(ServerError, match="the token is not this job's"):
            Client(group.addresses, Identity("a-wrong-token", group.certificate)).status()
        with socket.create_connection(("127.0.0.1", group.ports[0])) as plain:
            plain.sendall(b"".join(buffers({"op": "pull"}, {})))
            plain.settimeout(60)
            with contextlib.suppress(ConnectionResetError):
                while plain.recv(4096):  # an alert of TLS
                    pass
        assert client.pull().version == 0


def is_closed(connection: Connection) -> bool:
    try:
        return connection.socket.recv(1) == b""
    except ConnectionResetError:  # what it had not read is lost
        return True


def test_malformed_messages_of_those_inside_end_their_connection_alone(tmp_path: Path) -> None:
    hello = {
        "op": "hello",
        "role": "worker",
        "token": TOKEN,
        "task": "worker:1",
        "attempt": 1,
        "index": 0,
        "servers": 1,
    }
    with servers(tmp_path, 1, has_files=False) as group, group.client() as client:
        define(client)
        for header in (
            {"op": "draft", "step": "one", "base": 0},
            {"op": "draft", "step": 1, "base": -1},
            {"op": "pull", "dense": 7, "at_least": 0},
            {"op": "region", "direction": "to-server", "size": 4096},
            {"op": "pull", "dense": None, "at_least": 0, "arrays": [["ids:user", "i8", [10**9]]]},
            {"op": "pull", "dense": None, "at_least": 0, "arrays": [["ids:user", "O", [1]]]},
        ):
            connection = connect(group.address(0))
            connection.send(hello)
            assert connection.receive()
            connection.socket.sendall(head_of(header, 0))
            answer = connection.receive()
            assert answer is not None
            assert answer.header["kind"] == "refused", header
            assert is_closed(connection)
            connection.close()
        assert client.pull().version == 0


def greeted(group: Servers, index: int = 0, **changes: Any) -> Connection:
    """Return a connection that a server has let in."""
    hello = {"op": "hello", "role": "worker", "token": TOKEN, "task": "worker:1", "attempt": 1}
    connection = connect(group.address(index))
    connection.send({**hello, "index": index, "servers": group.count, **changes})
    assert "error" not in connection.receive().header  # type: ignore[union-attr]
    return connection


def answer_of(connection: Connection, header: dict[str, Any], arrays: Any = None) -> dict[str, Any]:
    connection.send(header, arrays)
    answer = connection.receive()
    assert answer is not None
    return answer.header


def test_rows_to_begin_with_are_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    rows = numpy.ones((2, DIMENSION), numpy.float32)
    arrays = {"ids:user": numpy.array([1, 2]), "rows:user": rows}
    with servers(tmp_path, 1) as group, group.client() as client:
        define(client)
        connection = greeted(group)
        for ids, message in (([3, 1000], "table 'item' has ids from 0 to 999"), ([3, 3], "ids of table 'item' repeat")):
            wrong = {"ids:item": numpy.array(ids), "rows:item": rows}
            assert message in answer_of(connection, {"op": "seed"}, arrays | wrong)["error"]
            assert not len(client.ids("user"))
        connection.close()


def test_a_message_that_makes_no_sense_ends_no_server(tmp_path: Path) -> None:
    with servers(tmp_path, 2, has_files=False) as group, group.client() as client:
        client.status()
        follower, worker = greeted(group, 1), greeted(group)
        follower.send({"op": "pull"})  # waits for a definition, and lacks a version
        define(client)
        answer = follower.receive()
        assert answer is not None
        assert "at_least of a message 'pull' must be a whole number" in answer.header["error"]
        draft = {"op": "draft", "step": 1, "base": 0, "rate": 10**400}
        assert "the learning rate of a push is 1000" in answer_of(worker, draft)["error"]
        for header in (
            {"op": "follow", "after": 0},
            {"op": "holds", "view": "v"},
            {"op": "take", "move": 0, "index": 9},
        ):
            assert f"a message '{header['op']}' of a worker" in answer_of(worker, header)["error"]
        worker.close()
        with pytest.raises(AssertionError):
            greeted(group, task="former worker:0")
        assert client.push(0, {"bias": numpy.ones(3)}) == 1
        assert client.pull(at_least=1).version == 1


@pytest.mark.parametrize("count", [1, 2])
def test_an_older_attempt_pushes_no_more(tmp_path: Path, count: int) -> None:
    generator, model = numpy.random.default_rng(8), Model(Adam(0.01))
    with servers(tmp_path, count) as group, group.client() as old:
        define(old)
        push_some(old, model, generator, 3)
        late = connect(group.address(count - 1))
        hello = {"op": "hello", "role": "worker", "token": TOKEN, "task": "worker:0", "attempt": 1}
        late.send({**hello, "index": count - 1, "servers": count})
        assert late.receive()
        with group.client(attempt=2) as new:
            define(new)
            with pytest.raises(Superseded, match="a newer attempt of worker:0 than 1"):
                old.push(3, *some_push(generator))
            with pytest.raises(ServerError, match="attempt 1 of worker:0 is not the newest, 2"):
                group.client().status()
            push_some(new, model, generator, 3)
            late.send({"op": "draft", "step": 2**61, "base": 3}, {"dense:bias": numpy.ones(3, numpy.float32)})
            late.receive()
            late.close()
            group.kill()
            group.begin()
            push_some(new, model, generator, 2)
            assert_holds(new, model)
            assert settled_drafts(new, 0)


def test_a_worker_says_that_a_model_is_bad_only_where_it_is(tmp_path: Path) -> None:
    """All else passes, and has the worker begin again."""
    strategy: Any = ServerStrategy.__new__(ServerStrategy)
    strategy.rank = 0
    strategy._tables = SimpleNamespace(optimizer=lambda: (SGD(), None), dense=lambda: PARAMETERS, specs=TABLES)
    with servers(tmp_path, 1, has_files=False) as group, group.client(attempt=2) as client:
        define(client)
        strategy._client = client
        strategy.keep()  # they have no directory
        with pytest.raises(BadModel, match=r"the parameter servers cannot take the model: .* another definition"):
            strategy._define(ASYNCHRONOUS)
        strategy._client = group.client()
        with pytest.raises(ServerError, match="attempt 1 of worker:0 is not the newest, 2"):
            strategy._define(ASYNCHRONOUS)
        strategy._client = Client(group.addresses, Identity(TOKEN), patience=0.0)
        group.kill()
        for act in (strategy.keep, lambda: strategy._define(ASYNCHRONOUS)):
            with pytest.raises(ServerGone):
                act()


def test_a_server_without_files_that_comes_back_is_noticed(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(9), Model(Adam(0.01))
    with servers(tmp_path, 1, has_files=False) as group, group.client() as client:
        define(client)
        push_some(client, model, generator, 2)
        group.kill()
        group.begin()
        with pytest.raises(StateLost, match="came back without what it had"):
            client.pull()


def test_one_of_two_without_files_that_comes_back_ends(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(9), Model(Adam(0.01))
    with servers(tmp_path, 2, has_files=False) as group, group.client() as client:
        define(client)
        push_some(client, model, generator, 2)
        group.kill(1)
        group.begin(1)
        assert group.processes[1].wait(60) == 1
        assert "pushes are lost, so the training must begin from a checkpoint" in group.log(1)


# -- checkpoints --


@pytest.mark.parametrize("count", [1, 2])
def test_a_checkpoint_is_of_one_version_and_comes_back_onto_any_number_of_servers(tmp_path: Path, count: int) -> None:
    generator, model = numpy.random.default_rng(11), Model(Adam(0.01))
    with servers(tmp_path, count) as group, group.client() as client:
        define(client)
        push_some(client, model, generator, 5)
        version = client.checkpoint()
        push_some(client, model, generator, 4)  # are in the log alone
        await_checkpoint(client, version)
        assert version == 5
    attempt = 1
    for other_count in (3, 1):
        attempt += 1
        with servers(tmp_path, other_count) as group, group.client(attempt=attempt) as client:
            define(client)
            assert_holds(client, model)
            push_some(client, model, generator, 3)
            assert_holds(client, model)
            assert client.status()[0]["applied"] == model.version


def test_a_checkpoint_that_was_cut_short_is_refused_and_the_one_before_is_used(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(12), Model(Adam(0.01))
    with servers(tmp_path, 2) as group, group.client() as client:
        define(client, Updates(tolerance=None, checkpoint_steps=3))
        for version in (3, 6):
            push_some(client, model, generator, 3)
            await_checkpoint(client, version)
        push_some(client, model, generator, 2)
        group.kill()
        cut_short(group.directory / "version-6" / "variables-1-of-2.ckpt")
        (group.directory / "version-9").mkdir()
        (group.directory / "version-9" / "variables-0-of-2.ckpt.part").write_bytes(b"begun")
        group.begin()
        assert_holds(client, model)
        assert "variables-1-of-2.ckpt has" in group.log(1)
        assert "it was cut short; the checkpoint before it is tried" in group.log(1)
        push_some(client, model, generator, 2)
        await_checkpoint(client, 9)
        assert_holds(client, model)


def test_logs_and_checkpoints_that_are_needed_no_more_are_removed(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(13), Model(Adam(0.01))
    with servers(tmp_path, 1) as group, group.client() as client:
        define(client, Updates(tolerance=None, checkpoint_steps=2, keep_checkpoints=2))
        for version in (2, 4, 6, 8):
            push_some(client, model, generator, 2)
            await_checkpoint(client, version)
        assert sorted(folder.name for folder in group.directory.glob("version-*")) == ["version-6", "version-8"]
        assert len(list(group.directory.glob("journal/0-of-1/segment-*"))) == 2
        manifest = json.loads((group.directory / "version-8" / "manifest-of-1.json").read_text())
        assert manifest["shares"][0]["rows"] == sum(map(len, model.tables.values()))


def test_training_may_begin_with_a_checkpoint_of_another_directory(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(14), Model(Adam(0.01))
    with servers(tmp_path / "first", 2) as group, group.client() as client:
        define(client)
        push_some(client, model, generator, 4)
        await_checkpoint(client, client.checkpoint())
        push_some(client, Model(Adam(0.01)), generator, 0)
    for has_files in (False, True):
        flags = ("--init", str(tmp_path / "first" / "ckpt"))
        place = tmp_path / f"next-{has_files}"
        with servers(place, 3, has_files=has_files, flags=flags) as group, group.client() as client:
            define(client)
            assert_holds(client, model)
    with servers(tmp_path / "none", 1, flags=("--init", str(tmp_path / "nothing"))) as group:
        assert group.processes[0].wait(60) == 2
        assert "has no whole checkpoint of parameter servers" in group.log(0)


def test_rows_that_nobody_uses_are_evicted_and_stay_so(tmp_path: Path) -> None:
    tables = {"brief": TableSpec(4, evict_unused=0.5), "lasting": TableSpec(4)}
    ids = numpy.arange(10)

    def rows_left(client: Client) -> dict[str, int]:
        return {name: sum(status["tables"][name]["rows"] for status in client.status()) for name in tables}

    with servers(tmp_path, 2) as group, group.client() as client:
        client.define({}, tables, {"name": "SGD", "learning_rate": 1.0}, ASYNCHRONOUS)
        before = client.pull(rows={"brief": ids})
        client.push(0, rows={name: (ids, numpy.ones((10, 4))) for name in tables})
        until(lambda: rows_left(client) == {"brief": 0, "lasting": 10})
        assert numpy.array_equal(client.pull(rows={"brief": ids[:5]}).rows["brief"], before.rows["brief"][:5])
        group.kill()
    for count in (2, 3, 1):
        shards = [restore(str(group.directory), index, count, print)[0] for index in range(count)]
        rows = {name: sum(len(shard.tables[name]) for shard in shards) for name in tables}
        assert rows == {"brief": 0, "lasting": 10}
        assert {shard.version for shard in shards} == {1}


# -- who dies --

PUSHER = """
import sys
sys.path.insert(0, {tests!r})
import numpy
from parameter_servers import *
with Servers({folder!r}, {count}, has_files=False).client("worker:1", {attempt}) as client:
    define(client)
    generator = numpy.random.default_rng({seed})
    print("ready", flush=True)
    while True:
        client.push(0, *some_push(generator))
"""


@pytest.mark.parametrize("count", [1, 3])
def test_a_worker_killed_in_the_middle_of_a_push_leaves_it_everywhere_or_nowhere(tmp_path: Path, count: int) -> None:
    """The order, as server 0 logged it, applied by a model to the drafts, gives what the servers hold."""
    random = numpy.random.default_rng(15)
    with servers(tmp_path, count) as group, group.client() as client:
        define(client)
        for attempt in range(1, 4):
            program = PUSHER.format(
                tests=str(Path(__file__).parents[1]), folder=str(tmp_path), count=count, attempt=attempt, seed=attempt
            ).replace(repr(str(tmp_path)), f"__import__('pathlib').Path({str(tmp_path)!r})")
            worker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
            try:
                assert worker.stdout is not None
                assert worker.stdout.readline() == b"ready\n"
                enough = client.status()[0]["applied"] + int(random.integers(1, 15))
                until(lambda enough=enough: client.status()[0]["applied"] >= enough)  # type: ignore[misc]
            finally:
                worker.kill()
                worker.wait()
                assert worker.stdout is not None
                worker.stdout.close()
        until(  # what the dead worker had sent may be handled behind our first question
            lambda: client.status()[0]["version"] == len(Ledger(group.directory, count).order),
            what=lambda: f"{len(Ledger(group.directory, count).order)} versions in the log, {client.status()}",
        )
        assert_holds(client, Ledger(group.directory, count).replayed())
        assert client.status()[0]["applied"] == client.status()[0]["version"]


class Ledger:
    """The pushes that were put in order, out of the servers' logs."""

    def __init__(self, directory: Path, count: int) -> None:
        from trainmaster.ps.storage.journal import records_behind

        self.drafts: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.order: list[Any] = []
        for index in range(count):
            for record in records_behind(str(directory / "journal" / f"{index}-of-{count}"), 0):
                if record.header["op"] == "draft":
                    draft = self.drafts.setdefault(tuple(record.header["name"]), {})
                    for key, array in record.arrays().items():
                        draft.setdefault(key, []).append(array)
                elif index == 0 and "version" in record.header:
                    self.order.append(record.header)

    def replayed(self) -> Model:
        model = Model(Adam(0.01))
        for number, entry in enumerate(self.order, 1):
            assert entry["version"] == number
            (name,) = entry["of"]
            arrays = {
                key: numpy.concatenate([numpy.atleast_1d(part) for part in parts]) if len(parts) > 1 else parts[0]
                for key, parts in self.drafts.pop(tuple(name)).items()
            }
            dense = {key[6:]: array for key, array in arrays.items() if key.startswith("dense:")}
            rows = {
                key[4:]: (array, arrays[f"rows:{key[4:]}"]) for key, array in arrays.items() if key.startswith("ids:")
            }
            model.push(dense, rows)
        return model


class Seeds(Protocol):
    def __call__(self, count: int) -> Iterator[int]: ...


def kills(folder: Path, count: int, seed: int, times: int, updates: Updates) -> None:
    """Kill a server, or all of them, again and again while a worker pushes; each push that was acknowledged is there once.

    The ledger is the worker's own: the model gets each push as soon as it was acknowledged, and no other.
    """
    random, model = numpy.random.default_rng(seed), Model(Adam(0.01))
    with servers(folder, count) as group, group.client() as client:
        define(client, updates)
        over = threading.Event()

        def kill() -> None:
            for _ in range(times):
                over.wait(random.uniform(0.0, 0.25))
                victims = range(count) if random.random() < 0.2 else [int(random.integers(count))]
                group.kill(*victims)
                group.begin(*victims)
                until(lambda: all(socket_is_there(group.addresses[index]) for index in victims))  # noqa: B023
            over.set()

        killer = threading.Thread(target=kill)
        killer.start()
        generator = numpy.random.default_rng(seed + 1)
        try:
            while not over.is_set():
                dense, rows = some_push(generator)
                assert client.push(model.version, dense, rows) == model.version + 1
                model.push(dense, rows)
        finally:
            over.set()
            killer.join()
        push_some(client, model, generator, 3)
        assert_holds(client, model)
        assert {status["applied"] for status in client.status()} == {model.version}
        rows = sum(table["rows"] for status in client.status() for table in status["tables"].values())
        assert rows == sum(map(len, model.tables.values()))


def socket_is_there(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address.removeprefix("unix:")) == 0


SYNCHRONOUS = Updates(tolerance=0, checkpoint_steps=7, keep_checkpoints=3)


def test_servers_killed_at_random_moments_lose_and_double_nothing(tmp_path: Path, seeds: Seeds) -> None:
    for seed in seeds(1):
        kills(tmp_path, 2, seed, 5, Updates(tolerance=None, checkpoint_steps=10))


@pytest.mark.soak
@pytest.mark.parametrize("count", [1, 2, 3])
def test_servers_killed_at_100_random_moments_lose_and_double_nothing(tmp_path: Path, seeds: Seeds, count: int) -> None:
    for seed in seeds(1):
        kills(tmp_path / "async", count, seed, 50, Updates(tolerance=None, checkpoint_steps=25, keep_checkpoints=2))
        kills(tmp_path / "sync", count, seed + 7, 50, SYNCHRONOUS)


def test_rows_beyond_the_memory_are_refused_and_the_others_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(256 * 2**20))
    rows, generator = 2**16, numpy.random.default_rng(21)
    with servers(tmp_path, 1, has_files=False) as group, group.client() as client:
        client.define({}, {"wide": TableSpec(256)}, {"name": "SGD"}, ASYNCHRONOUS)
        refusal, count = None, 0
        while refusal is None and count < 2**20:
            try:
                client.pull(rows={"wide": numpy.arange(count, count + rows)})
                count += rows
            except ServerError as error:
                refusal = str(error)
        assert count
        assert re.search(
            rf"no memory for {rows:,} more rows of table 'wide': it has {count:,}, of 1036 bytes each, and \d+ MiB are left",
            str(refusal),
        )
        ids = generator.choice(count, 1000, replace=False)
        before = client.pull(rows={"wide": ids}).rows["wide"]
        with pytest.raises(ServerError, match="no memory for"):
            client.seed("wide", numpy.arange(count, 2 * count), numpy.ones((count, 256), numpy.float32))
        with pytest.raises(ServerError, match="no memory for"):
            client.push(0, rows={"wide": (numpy.arange(count, 2 * count), numpy.ones((count, 256)))})
        client.push(0, rows={"wide": (ids, numpy.ones((1000, 256)))})
        assert numpy.allclose(client.pull(rows={"wide": ids}).rows["wide"], before - 0.01)


def test_a_server_that_is_stopped_is_waited_for(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(16), Model(Adam(0.01))
    with servers(tmp_path, 2) as group, group.client() as client:
        define(client)
        os.kill(group.processes[1].pid, signal.SIGSTOP)
        future = client.prefetch(rows={"user": [1]})
        assert not future.done()
        os.kill(group.processes[1].pid, signal.SIGCONT)
        assert future.result(60).rows["user"].shape == (1, 4)
        push_some(client, model, generator, 1)


def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    with servers(tmp_path, 2) as group, group.client(patience=10) as client:
        with group.client("worker:1") as other:
            define(other)
        define(client)
        os.kill(group.processes[1].pid, signal.SIGSTOP)
        with pytest.raises(ServerGone, match=r"parameter server 1 has not answered for 10 s"):
            client.pull(rows={"user": [1]})


def test_an_address_that_another_server_has_now_is_passed_over(tmp_path: Path) -> None:
    with servers(tmp_path, 2, has_tls=True) as group:
        first, second = group.addresses
        identity = Identity(group.token, group.certificate, "worker:0", 1)
        with Client([["127.0.0.1:", second, first], ["no port", first, second]], identity, patience=60.0) as client:
            define(client)
            assert client.pull(rows={"user": [1, 2]}).rows["user"].shape == (2, 4)
        with Client([second, first], identity) as client, pytest.raises(ServerError, match="in the same order"):
            define(client)


def test_a_worker_tells_servers_where_server_0_is(tmp_path: Path) -> None:
    with servers(tmp_path, 2, leader="unix:/nowhere") as group, group.client() as client:
        model = Model(Adam(0.01))
        define(client)
        push_some(client, model, numpy.random.default_rng(17), 3)
        assert_holds(client, model)


def test_servers_with_directories_of_their_own_come_back_and_forget_old_checkpoints(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(18), Model(Adam(0.01))
    with servers(tmp_path, 2, is_apart=True) as group, group.client() as client:
        define(client, Updates(checkpoint_steps=2, keep_checkpoints=2))
        for _ in range(4):
            push_some(client, model, generator, 2)
            await_checkpoint(client, client.version)
        names = {f"version-{version}/manifest-of-2.json" for version in (client.version - 2, client.version)}
        for directory in map(group.directory_of, range(2)):
            assert {str(path.relative_to(directory)) for path in directory.glob("version-*/manifest*")} == names
        push_some(client, model, generator, 1)
        group.kill()
        group.begin()
        assert_holds(client, model)
        push_some(client, model, generator, 3)
        assert_holds(client, model)


def test_gradients_of_one_id_are_summed() -> None:
    ids = numpy.array([[5, 3], [5, 9]])
    distinct, places = deduplicated(ids)
    gradients = numpy.arange(8, dtype=numpy.float32).reshape(2, 2, 2)
    assert distinct.tolist() == [3, 5, 9]
    assert summed(places, gradients, 3).tolist() == [[2, 3], [0 + 4, 1 + 5], [6, 7]]
    assert summed(numpy.zeros((0,), numpy.int64), numpy.zeros((0, 2)), 0).shape == (0, 2)


def test_a_pull_of_all_servers_is_of_one_version_whatever_is_pushed_meanwhile(tmp_path: Path) -> None:
    """Each push adds one to all rows and parameters, so what is of one version is equal everywhere."""
    rows, is_over = numpy.arange(30), threading.Event()
    with servers(tmp_path, 3) as group, group.client() as client, group.client("worker:1") as other:
        names = {f"part {number}": numpy.zeros(2, numpy.float32) for number in range(6)}
        tables = {"user": TableSpec(DIMENSION, Constant(0.0))}
        for one in (client, other):
            one.define(names, tables, {"name": "SGD", "learning_rate": 1.0}, ASYNCHRONOUS)

        def push() -> None:
            while not is_over.is_set():
                gradients = {name: -numpy.ones(2, numpy.float32) for name in names}
                other.push(other.version, gradients, {"user": (rows, -numpy.ones((30, DIMENSION), numpy.float32))})

        pushing = threading.Thread(target=push)
        pushing.start()
        try:
            for number in range(60):
                pulled = client.pull_exactly({"user": rows})
                assert pulled.newest == pulled.version
                assert {float(value) for array in pulled.dense.values() for value in array} == {float(pulled.version)}
                assert {*pulled.rows["user"].reshape(-1).tolist()} == {float(pulled.version)}
                if number in (20, 40):  # server 0, and another one
                    group.kill(number // 20 - 1)
                    group.begin(number // 20 - 1)
        finally:
            is_over.set()
            pushing.join()
        assert pulled.version > 20
