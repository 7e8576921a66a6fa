"""Another number of real servers while workers push: what they hold is what one process would, whoever dies on the way."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest
from parameter_servers import (
    ADAM,
    ASYNCHRONOUS,
    PARAMETERS,
    TABLES,
    TOKEN,
    Model,
    Servers,
    assert_holds,
    define,
    servers,
    some_push,
)
from waiting import until

from trainmaster.ps.client import Client
from trainmaster.ps.moving import sending
from trainmaster.ps.moving.planning import next_servers
from trainmaster.ps.moving.sending import Sending
from trainmaster.ps.optimizers import Adam
from trainmaster.ps.shard import Shard
from trainmaster.ps.specification import Definition, TableSpec, Updates, optimizer_of
from trainmaster.ps.storage.placements import job_name
from trainmaster.ps.tables.memory import VARIABLE
from trainmaster.ps.wire.connections import Connection, accept, connect, listen

LIMIT = 180.0  # s


class Worker:
    """It pushes all the time, and knows what the servers must hold."""

    def __init__(self, client: Client) -> None:
        self.client, self.model = client, Model(Adam(0.01))
        self._generator = numpy.random.default_rng(3)
        define(client)

    def push(self, count: int = 1) -> None:
        for _ in range(count):
            dense, rows = some_push(self._generator)
            assert self.client.push(self.model.version, dense, rows) == self.model.version + 1
            self.model.push(dense, rows)

    @contextmanager
    def pushes(self) -> Iterator[Callable[[int], None]]:
        """Push in the background, and yield a function that waits for so many pushes more."""
        is_over, faults = threading.Event(), list[BaseException]()

        def run() -> None:
            try:
                while not is_over.is_set():
                    self.push()
            except BaseException as fault:  # noqa: BLE001  the test raises it
                faults.append(fault)

        def until_pushed(more: int) -> None:
            goal = self.model.version + more
            until(lambda: self.model.version >= goal or faults, LIMIT, what=f"{more} more pushes")
            assert not faults

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield until_pushed
        finally:
            is_over.set()
            thread.join()
        assert not faults


def await_servers(group: Servers, count: int) -> None:
    def has_moved() -> bool:
        return f"server 0 of {count} serves" in group.log(0).rpartition("ps: rows are moved")[2]

    until(has_moved, LIMIT, what=lambda: logs(group))


@pytest.mark.parametrize(("has_files", "has_tls"), [(True, False), (False, True)])
def test_servers_come_and_go_while_a_worker_pushes(tmp_path: Path, has_files: bool, has_tls: bool) -> None:
    options = {"has_files": has_files, "has_tls": has_tls, "flags": ("--leave",)}
    with servers(tmp_path, 1, **options) as group, group.client() as client, group.client("worker:1") as other:
        worker = Worker(client)
        define(other)
        with worker.pushes() as until_pushed:
            until_pushed(3)
            group.begin(1, 2)
            await_servers(group, 3)
            until_pushed(5)
            group.leave(2)
            await_servers(group, 2)
            until_pushed(5)
        assert client.servers == 2
        assert_holds(client, worker.model)
        assert_holds(other, worker.model)
        assert other.prefetch(rows={"item": [1, 2]}).result().rows["item"].shape == (2, 4)
        rows = [sum(table["rows"] for table in status["tables"].values()) for status in client.status()]
        assert len(rows) == 2
        group.leave(1)
        worker.push(2)
        assert client.servers == 1
        assert_holds(other, worker.model)


@pytest.mark.parametrize("first", [1, 2])
def test_servers_that_must_end_together_leave_together(tmp_path: Path, first: int) -> None:
    with servers(tmp_path, 3, flags=("--leave",)) as group, group.client() as client:
        worker = Worker(client)
        worker.push(3)
        group.processes[first].terminate()
        group.leave(3 - first)
        assert group.processes[first].wait(LIMIT) == 0
        worker.push(3)
        assert client.servers == 1
        assert_holds(client, worker.model)


def test_they_come_back_in_the_number_that_they_are(tmp_path: Path) -> None:
    with servers(tmp_path, 1, flags=("--leave",)) as group, group.client() as client:
        worker = Worker(client)
        worker.push(3)
        group.begin(1)
        await_servers(group, 2)
        worker.push(3)  # behind the first checkpoint of two
        group.kill(0, 1)
        group.begin(0, 1)
        worker.push(3)
        assert client.servers == 2
        assert_holds(client, worker.model)
        group.leave(1)
        group.kill(0)
        group.begin(0)
        worker.push(3)
        assert client.servers == 1
        assert_holds(client, worker.model)


@pytest.mark.parametrize(
    ("servers_now", "newcomers", "leaving", "servers_next"),
    [
        (2, {2}, set(), 3), (2, {2, 3}, set(), 4), (2, {3}, set(), 2), (3, set(), {2}, 2), (3, set(), {1, 2}, 1), (3, set(), {1}, 3),
        (3, {3}, {2}, 4), (2, set(), {0, 1}, 1),
    ],
)  # fmt: skip
def test_the_next_number_of_servers(
    servers_now: int, newcomers: set[int], leaving: set[int], servers_next: int
) -> None:
    assert next_servers(servers_now, newcomers, leaving) == servers_next


@pytest.mark.parametrize(
    ("victim", "wait"),
    [
        pytest.param(victim, wait, marks=[] if victim == wait == 0 else pytest.mark.full)
        for victim in range(3)
        for wait in (0, 0.1, 0.3)
    ],
)
def test_a_server_that_is_killed_while_rows_move_loses_nothing(tmp_path: Path, victim: int, wait: float) -> None:
    """Server 2 joins two others. Whichever of them is killed, they come to be three, sooner or later."""
    with servers(tmp_path, 2, flags=("--leave",)) as group, group.client() as client:
        worker = Worker(client)
        with worker.pushes() as until_pushed:
            until_pushed(3)
            group.begin(2)
            until(lambda: "rows are moved" in group.log(0), LIMIT)
            threading.Event().wait(wait)
            group.kill(victim)
            with kept_alive(group):
                until(lambda: client.servers == 3, LIMIT, what=lambda: logs(group))
                until_pushed(3)
        assert_holds(client, worker.model)


@pytest.mark.parametrize("is_stored", [False, True])
def test_the_rows_of_a_server_that_is_killed_while_it_leaves_are_read_from_its_files(
    tmp_path: Path, is_stored: bool
) -> None:
    with servers(tmp_path, 3, flags=("--leave",)) as group, group.client() as client, group.client("other:0") as other:
        worker = Worker(client)
        with worker.pushes() as until_pushed:
            until_pushed(3)
            if is_stored:
                other.checkpoint()
                until_pushed(3)
            group.processes[1].send_signal(signal.SIGSTOP)  # no move comes to its end
            group.processes[2].terminate()
            until(lambda: "rows are moved" in group.log(0), LIMIT, what=lambda: logs(group))
            group.kill(2)
            group.processes[1].send_signal(signal.SIGCONT)
            until(lambda: client.servers == 2, LIMIT, what=lambda: logs(group))
            until_pushed(3)
        assert "server 2 died before" in group.log(0)
        assert_holds(client, worker.model)
        group.begin(2)  # and it may come back
        await_servers(group, 3)
        worker.push(3)
        assert client.servers == 3
        assert_holds(client, worker.model)


def test_a_server_that_could_not_note_their_number_comes_back(tmp_path: Path) -> None:
    with servers(tmp_path, 2, flags=("--leave",)) as group, group.client() as client:
        worker = Worker(client)
        worker.push(3)
        obstacle = group.directory / "serving" / "servers-of-0.part"
        obstacle.mkdir(parents=True)
        group.begin(2)
        assert group.processes[0].wait(LIMIT) == 1
        obstacle.rmdir()
        group.begin(0)
        worker.push(3)
        assert client.servers == 3
        assert_holds(client, worker.model)


def test_a_move_is_near_its_end_once_little_waits_and_pushes_wait_where_much_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "_MOST_BEHIND", 2**20)
    monkeypatch.setattr(sending, "_NEAR", 2**18)
    shard, changes = Shard(0, 1), threading.Semaphore(0)
    shard.define(
        Definition({name: value.shape for name, value in PARAMETERS.items()}, TABLES, Adam(), Updates()), PARAMETERS
    )
    here, there = map(Connection, socket.socketpair())
    sender = Sending(shard, 1, 1, changes.release)
    push = {"op": "draft", "name": ["worker:0", 1, 1], "base": 0}, {"dense:bias": numpy.zeros(2**17, numpy.float32)}
    for _ in range(20):  # of 0.5 MiB
        sender.log(*push)
    assert sender.is_behind
    sender.add(0, here)
    came = []
    while "near" not in came:
        came.append(there.receive().op)
    assert came.index("end") < came.index("draft") < came.index("near")
    assert changes.acquire(timeout=LIMIT)
    assert not sender.is_behind
    there.close()
    sender.log(*push)
    assert changes.acquire(timeout=LIMIT)
    assert sender.error
    sender.cancel()


def test_rows_of_workers_come_before_a_move_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer that is stopped keeps a move from its end, while what is pushed is kept for it."""
    monkeypatch.setenv(VARIABLE, str(160 * 2**20))
    with servers(tmp_path, 1, has_files=False) as group, group.client() as client:
        client.define({}, {"wide": TableSpec(256)}, {"name": "SGD"}, ASYNCHRONOUS)
        rows, gradients = numpy.arange(2**15), numpy.ones((1000, 256), numpy.float32)
        client.pull(rows={"wide": rows})
        client.push(0, rows={"wide": (rows[:1000], gradients)})
        group.begin(1)
        until(lambda: "rows are moved" in group.log(0), LIMIT)
        os.kill(group.processes[1].pid, signal.SIGSTOP)
        pushes = 1
        while "rows are not moved to 2 servers: server 0" not in group.log(0):
            client.push(client.version, rows={"wide": (rows[-1000:] + pushes // 4 * 100, gradients)})
            pushes += 1
        assert "has no memory for" in group.log(0)
        client.pull(rows={"wide": numpy.arange(2**15, 2**15 + 2000)})
        assert client.status()[0]["applied"] == pushes


def test_the_last_entry_is_read_of_a_server_0_that_has_gone_on(tmp_path: Path) -> None:
    """Here the test is server 0. A worker's pull has server 1 write to it before that entry is read."""
    group = Servers(tmp_path, 2, has_files=False, flags=("--leave",))
    with listen(group.address(0)) as listener:
        listener.settimeout(LIMIT)
        group.begin(1)
        try:
            leader, _ = accept(listener, None)
            leader.socket.settimeout(LIMIT)
            assert leader.receive()
            leader.send({"op": "answer", "version": 0, "is_defined": True, "servers": 2})
            assert leader.receive()
            leader.send({"op": "define", "definition": Definition({}, {}, optimizer_of(ADAM), Updates()).to_plain()})
            leader.send({"op": "entry", "sequence": 1, "time": 0, "job": job_name(TOKEN)})
            worker = connect(group.address(1))
            hello = {"op": "hello", "role": "worker", "token": TOKEN, "task": "worker:0", "attempt": 1}
            worker.send({**hello, "index": 1, "servers": 2})
            assert worker.receive()

            def sequence() -> int:
                worker.send({"op": "status"})
                answer = worker.receive()
                return answer.header["sequence"] if answer is not None else 0

            until(lambda: sequence() == 1, LIMIT)
            os.kill(group.processes[1].pid, signal.SIGSTOP)
            worker.send({"op": "pull", "dense": None, "at_least": 0, "view": "one"})
            leader.send({"op": "entry", "sequence": 2, "time": 0, "placed": 1})
            leader.close()
            os.kill(group.processes[1].pid, signal.SIGCONT)
            assert group.processes[1].wait(LIMIT) == 0
            assert "ps: server 1 has given its rows to the other 1" in group.log(1)
            worker.close()
        finally:
            group.end()


@contextmanager
def kept_alive(group: Servers) -> Iterator[None]:
    """Begin servers again that have ended, as a job does."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(0.1):
            for index, process in list(group.processes.items()):
                if process.poll() is not None:
                    group.begin(index)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def logs(group: Servers) -> str:
    return "\n".join(f"-- {index}\n{group.log(index)}" for index in group.processes)
