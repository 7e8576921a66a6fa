"""Real parameter servers for tests: processes of this machine, killed and begun again at will, and a model of what they must hold."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
from waiting import until

from trainmaster.client.submit.ahead import certificate_and_key
from trainmaster.ps.client import Client, Identity, TableSpec, Updates
from trainmaster.ps.initializers import Uniform
from trainmaster.ps.optimizers import update_dense
from trainmaster.ps.tables.table import Table

TOKEN = "a-token-of-tests"
DIMENSION = 4
TABLES = {"user": TableSpec(DIMENSION, seed=5), "item": TableSpec(DIMENSION, Uniform(-1.0, 1.0), input_dim=1000)}
SHAPES = {"bias": (3,), "kernel": (2, 3), "scale": ()}
PARAMETERS = {name: numpy.full(shape, 0.5, numpy.float32) for name, shape in SHAPES.items()}
ADAM = {"name": "Adam", "learning_rate": 0.01}
ASYNCHRONOUS = Updates(tolerance=None)


class Servers:
    """`count` servers that keep their sockets, logs and checkpoints in `folder`. `has_tls`: they serve by TCP. `leader`: the
    address of server 0 as the others are told it, where that is another one. `is_apart`: each has a directory of its own.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        *,
        has_files: bool = True,
        flags: tuple[str, ...] = (),
        has_tls: bool = False,
        leader: str = "",
        is_apart: bool = False,
        token: str = TOKEN,
    ) -> None:
        self.folder, self.count, self.certificate, self._leader = folder, count, "", leader
        self.ports = list(map(free_port, range(count + 2))) if has_tls else []  # some may join them
        if has_tls:
            self.certificate, key = certificate_and_key()
            (folder / "certificate.pem").write_text(self.certificate)
            (folder / "key.pem").write_text(key)
            flags = (*flags, "--certificate", str(folder / "certificate.pem"), "--key", str(folder / "key.pem"))
        self.directory = folder / "ckpt"
        self._flags, self._has_files, self._is_apart = flags, has_files, is_apart
        self.token = token
        (folder / "token").write_text(token)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def address(self, index: int) -> str:
        return f"127.0.0.1:{self.ports[index]}" if self.ports else f"unix:{self.folder}/{index}-of-{self.count}"

    def directory_of(self, index: int) -> Path:
        return self.directory / f"of-{index}" if self._is_apart else self.directory

    @property
    def addresses(self) -> list[str]:
        return [self.address(index) for index in range(self.count)]

    def begin(self, *indices: int) -> None:
        for index in indices or range(self.count):
            command = [sys.executable, "-m", "trainmaster.ps", "--index", str(index), "--servers", str(self.count)]
            command += ["--listen", self.address(index), "--leader", self._leader or self.address(0)]
            command += ["--token-file", str(self.folder / "token"), *self._flags]
            command += ["--directory", str(self.directory_of(index))] if self._has_files else []
            with open(self.folder / f"log-{index}-of-{self.count}", "ab") as log:
                self.processes[index] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, *indices: int) -> None:
        for index in indices or range(self.count):
            self.processes[index].kill()
            self.processes[index].wait()

    def leave(self, index: int) -> None:
        """Have a server end by a signal, and wait for it."""
        self.processes[index].terminate()
        assert self.processes[index].wait(60) == 0, self.log(index)

    def end(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def log(self, index: int) -> str:
        return (self.folder / f"log-{index}-of-{self.count}").read_text()

    def client(self, task: str = "worker:0", attempt: int = 1, **options: Any) -> Client:
        identity = Identity(self.token, self.certificate, task, attempt)
        return Client(self.addresses, identity, **{"patience": 60.0, **options})


def free_port(_: int) -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def servers(folder: Path, count: int, **options: Any) -> Iterator[Servers]:
    folder.mkdir(exist_ok=True)
    group = Servers(folder, count, **options)
    try:
        group.begin()
        yield group
    finally:
        group.end()


class Model:
    """What the servers hold together, in one process: the same pushes applied one after another."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.version = optimizer, 0
        self.dense = {name: value.copy() for name, value in PARAMETERS.items()}
        self.slots = {
            name: [numpy.full(shape, initial, numpy.float32) for initial in optimizer.slots.values()]
            for name, shape in SHAPES.items()
        }
        self.tables = {
            name: Table(name, DIMENSION, spec.initializer, optimizer, seed=spec.seed, input_dim=spec.input_dim)
            for name, spec in TABLES.items()
        }

    def push(self, dense: dict[str, Any], rows: dict[str, Any], rate: float | None = None) -> None:
        self.version += 1
        for name, gradient in dense.items():
            update_dense(self.optimizer, self.dense[name], gradient, self.slots[name], self.version, rate)
        for name, (ids, gradients) in rows.items():
            self.tables[name].push(ids, gradients, self.version, learning_rate=rate)


def assert_holds(client: Client, model: Model, ids: Any = range(40)) -> None:
    """Assert that the servers' version, parameters and rows are those of the model, bit by bit."""
    pulled = client.pull(rows={name: list(ids) for name in TABLES}, at_least=model.version)
    assert pulled.version == model.version
    for name, value in model.dense.items():
        assert pulled.dense[name].tobytes() == value.tobytes(), name
    for name, table in model.tables.items():
        assert pulled.rows[name].tobytes() == table.pull(list(ids)).tobytes(), name


def define(client: Client, updates: Updates = ASYNCHRONOUS, optimizer: Any = ADAM) -> int:
    return client.define(PARAMETERS, TABLES, optimizer, updates)


def some_push(generator: numpy.random.Generator, most: int = 12) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return gradients of a few parameters and of rows of ids below 40."""
    dense = {
        name: numpy.asarray(generator.normal(size=shape), numpy.float32)
        for name, shape in SHAPES.items()
        if generator.random() < 0.7
    }
    rows = {}
    for name in TABLES:
        ids = generator.choice(40, int(generator.integers(0, most)), replace=False).astype(numpy.int64)
        rows[name] = ids, generator.normal(size=(len(ids), DIMENSION)).astype(numpy.float32)
    return dense, rows


def await_checkpoint(client: Client, version: int) -> None:
    until(lambda: all(status["completed"] >= version for status in client.status()), what=f"the checkpoint {version}")


def cut_short(path: Path, by: int = 100) -> None:
    os.truncate(path, path.stat().st_size - by)


def push_some(client: Client, model: Model, generator: numpy.random.Generator, count: int) -> None:
    for _ in range(count):
        dense, rows = some_push(generator)
        assert client.push(model.version, dense, rows) == model.version + 1
        model.push(dense, rows)
