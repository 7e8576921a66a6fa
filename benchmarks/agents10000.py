"""A master of 10,000 agents: how long one turn of its loop takes while they start, are watched and expire together, and its memory.

    python benchmarks/agents10000.py [--runs 1]

The master is the real one, as it is in a container of a cluster (`master.main`, TLS); its engine grants whatever is asked for. The agents
are connections alone: each says hello, obeys its orders by a report, pings every 2 s and answers pings, over TLS; two other processes hold
5,000 each. Twenty readers ask for the status each second, from when all run until the end. To expire together, both processes are
suspended until every attempt is written off, and then connect all agents anew. No other launcher has one process that holds 10,000 of
its workers, so there is no peer.

A turn is one callback of the event loop, by the wall clock: what else may run on the machine meanwhile counts too.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import queue
import selectors
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, ClassVar

import figures
from memory import TOKEN, certificate, pss

AGENTS, PROCESSES, READERS = 10_000, 2, 20
CONNECTING = 16  # of each process at once
PING_EVERY, LIMIT = 2.0, 600.0  # s
WATCHED = 20.0  # s of readers while nothing else happens
JOB = "bench-aaaaaa"


# -- the master --


class Generous:
    """An engine that grants everything at once."""

    def __init__(self) -> None:
        self._granted: set[tuple[str, int]] = set()
        self._news: asyncio.Queue[Any] = asyncio.Queue()

    async def open(self, epoch: int) -> Sequence[Any]:
        return ()

    async def ask(self, requests: Sequence[Any]) -> None:
        from trainmaster.core.machine.stimuli import Granted

        for request in requests:
            if (key := (request.task, request.serial)) not in self._granted:
                self._granted.add(key)
                self._news.put_nowait(Granted(*key, f"container-{request.task}-{request.serial}", "node"))

    async def release(self, task: str, serial: int) -> None:
        from trainmaster.core.machine.stimuli import ContainerExited

        self._news.put_nowait(ContainerExited(task, serial, None))

    async def changes(self) -> AsyncIterator[Any]:
        while True:
            yield await self._news.get()

    async def free(self) -> Sequence[Any]:
        return ()

    async def close(self, state: str) -> None: ...


class Place:
    """A container of a cluster as its master sees it (`master.hosts.ContainerRuntime`)."""

    address, port, begun_again, tokens = "127.0.0.1", 0, False, None
    agents: ClassVar[dict[str, Any]] = {}
    proxies = ()

    def engine(self, job: Any, spec: Any, page: Callable[[], str]) -> Generous:
        return Generous()

    def may_view(self, user: str) -> bool:
        return False

    def leave(self) -> None: ...


class Turns:
    """The longest callback of the event loop since it was last asked for."""

    def __init__(self) -> None:
        self.longest, self.name = 0.0, ""
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began = time.perf_counter()
            run(handle)
            if (took := time.perf_counter() - began) > self.longest:
                self.longest, self.name = took, repr(handle)[:200]

        asyncio.Handle._run = timed  # type: ignore[method-assign]

    def answer(self) -> None:
        """Answer each line on stdin with the longest turn, its callback, and the memory."""
        for _ in sys.stdin:
            print(json.dumps([self.longest, self.name, pss(os.getpid())]), flush=True)
            self.longest, self.name = 0.0, ""


def master(storage: str, certificate: str, key: str) -> int:
    from trainmaster.master import hosts, main

    threading.Thread(target=Turns().answer, daemon=True).start()
    told = {"token": TOKEN, "secrets": {}}
    return main.run(storage, told, hosts.ContainerHost(Place(), Path(certificate).read_text(), Path(key).read_text()))


def make_storage(folder: Path) -> Path:
    from trainmaster.core.spec.reading import job_from, job_to

    storage = folder / JOB
    (storage / "logs" / "master").mkdir(parents=True)
    role = {"command": "true", "replicas": AGENTS, "restart": {"scope": "task"}}
    job = job_from({"name": "bench", "roles": {"worker": role}, "gang": False, "timeouts": {"start": "1h"}})
    (storage / "job.json").write_text(json.dumps(job_to(job)))
    (storage / "site.json").write_text(json.dumps({"engine": "bench", "cwd": str(folder)}))
    return storage


# -- the agents --


class Agent:
    """One connection: the bytes of WebSocket frames, by RFC 6455, whose masking key is 0."""

    def __init__(self, index: int, port: int, context: ssl.SSLContext) -> None:
        self.task, self._port, self._context = f"worker:{index}", port, context
        self.serial, self._attempt, self._number = 1, 0, 0
        self._reports: list[dict[str, Any]] = []  # not acknowledged yet
        self._buffer = b""

    def connect(self) -> None:
        """Say hello, as an agent does that may have been connected before."""
        self._buffer = b""
        plain = socket.create_connection(("127.0.0.1", self._port), LIMIT)
        self.socket = self._context.wrap_socket(plain)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET /api/v1/agent HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self._buffer:
            if not (received := self.socket.recv(4096)):
                raise ConnectionResetError("the master closed a connection before it was a WebSocket")
            self._buffer += received
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        assert b" 101 " in head.split(b"\r\n")[0], head
        head = {"type": "hello", "v": "1.0", "epoch": 0}
        self.say(head | {"task": self.task, "serial": self.serial, "attempt": self._attempt})
        self.socket.setblocking(False)

    def say(self, message: dict[str, Any]) -> None:
        self._send(0x1, json.dumps(message).encode())

    def ping(self) -> None:
        self._send(0x9, b"")

    def _send(self, kind: int, payload: bytes) -> None:
        length = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
        self.socket.send(bytes([0x80 | kind]) + length + bytes(4) + payload)  # small: the socket's buffer takes it

    def read(self) -> bool:
        """Read and answer what there is; False at the connection's end."""
        try:
            while received := self.socket.recv(65536):
                self._buffer += received
                for kind, payload in self._frames():
                    self._heed(kind, payload)
        except ssl.SSLWantReadError:
            return True
        except OSError:
            return False
        return False

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        while len(self._buffer) >= 2:
            size, begin = self._buffer[1], 2
            if size == 126:
                size, begin = int.from_bytes(self._buffer[2:4], "big"), 4
            elif size == 127:
                size, begin = int.from_bytes(self._buffer[2:10], "big"), 10
            if len(self._buffer) < begin + size:
                return
            frame, self._buffer = self._buffer[: begin + size], self._buffer[begin + size :]
            yield frame[0] & 0xF, frame[begin:]

    def _heed(self, kind: int, payload: bytes) -> None:
        if kind == 0x9:
            self._send(0xA, payload)
        elif kind == 0x1:
            self._obey(json.loads(payload))

    def _obey(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "refused":  # what was written off does not come back; the task's next container does
            self.serial, self._attempt, self._number, self._reports = self.serial + 1, 0, 0, []
        elif kind in ("ack", "welcome"):
            acked = message["n" if kind == "ack" else "acked"]
            self._reports = [report for report in self._reports if report["n"] > acked]
        if kind == "welcome":
            for report in self._reports:
                self.say(report)
        elif kind == "order" and message["verb"] in ("prepare", "start"):
            self._attempt, self._number = message["attempt"], self._number + 1
            head = {"type": "report", "n": self._number, "attempt": self._attempt}
            ready = {"kind": "ready", "address": "127.0.0.1", "ports": {"main": 23000}}
            self._reports.append(head | (ready if message["verb"] == "prepare" else {"kind": "started", "pid": 1}))
            self.say(self._reports[-1])


def agents(port: int, first: int, count: int) -> None:
    """Be `count` agents until killed; whose connection ends comes back as the next container's."""
    context = trusting()
    selector, present = selectors.EpollSelector(), {}
    absent: queue.Queue[Agent] = queue.Queue()
    connected: queue.SimpleQueue[Agent] = queue.SimpleQueue()

    def connect() -> None:
        while agent := absent.get():
            try:
                agent.connect()
            except OSError:
                absent.put(agent)
            else:
                connected.put(agent)

    for index in range(first, first + count):
        absent.put(Agent(index, port, context))
    for _ in range(CONNECTING):
        threading.Thread(target=connect, daemon=True).start()
    pings = time.monotonic() + PING_EVERY
    while True:
        while not connected.empty():
            agent = connected.get()
            selector.register(agent.socket, selectors.EVENT_READ, agent)
            present[agent.task] = agent
        for key, _ in selector.select(0.02):
            if not key.data.read():
                selector.unregister(key.fileobj)
                key.fileobj.close()
                absent.put(present.pop(key.data.task))
        if time.monotonic() >= pings:
            pings = time.monotonic() + PING_EVERY
            for agent in present.values():
                with contextlib.suppress(OSError):
                    agent.ping()


def trusting() -> ssl.SSLContext:
    """A client's side of TLS that takes any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


# -- the readers --


class Readers:
    """Twenty that ask for the status each second, each by a connection of its own, until stopped."""

    def __init__(self, port: int) -> None:
        self._port, self._stopped = port, threading.Event()
        self.waits: list[float] = []
        self._threads = [threading.Thread(target=self._ask_often, daemon=True) for _ in range(READERS)]
        for thread in self._threads:
            thread.start()

    def _ask_often(self) -> None:
        while not self._stopped.wait(1.0):
            began = time.monotonic()
            status(self._port)
            self.waits.append(time.monotonic() - began)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def status(port: int) -> dict[str, Any]:
    """The job's status, asked for until it is answered, as `tm status` asks."""
    while True:
        with contextlib.suppress(OSError):
            return ask(port)


def ask(port: int) -> dict[str, Any]:
    connection = HTTPSConnection("127.0.0.1", port, context=trusting(), timeout=LIMIT)
    try:
        connection.request("GET", f"/api/v1/jobs/{JOB}", headers={"Authorization": f"Bearer {TOKEN}"})
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body[:500]
        return dict(json.loads(body))
    finally:
        connection.close()


# -- the measurement --


def until(holds: Callable[[], bool], every: float = 0.5) -> None:
    ends = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError
        time.sleep(every)


def once() -> dict[str, float]:
    started: list[subprocess.Popen[str]] = []
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

    def start(*arguments: object) -> subprocess.Popen[str]:
        started.append(subprocess.Popen([sys.executable, __file__, *map(str, arguments)], **pipes))
        return started[-1]

    with certificate() as paths, tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        storage = make_storage(Path(folder))
        taken: dict[str, float] = {}
        try:
            server = start("master", storage, *paths)
            record = storage / "master"
            until(record.exists)
            port = int(json.loads(record.read_text())["addresses"][0].rpartition(":")[2])

            def note(phase: str) -> None:
                assert server.stdin is not None
                assert server.stdout is not None
                print(file=server.stdin, flush=True)
                longest, name, memory = json.loads(server.stdout.readline())
                taken[phase], taken["memory"] = longest, max(memory, taken.get("memory", 0.0))
                print(f"{phase}: {longest:.3f} s, {memory:.0f} MiB, {name}", file=sys.stderr)

            def running(serial: int) -> bool:
                tasks = status(port)["tasks"]
                return sum(task["state"] == "running" and task["attempt"] >= serial for task in tasks) == AGENTS

            began = time.monotonic()
            each = AGENTS // PROCESSES
            held = [start("agents", port, number * each, each) for number in range(PROCESSES)]
            until(lambda: running(1), 2.0)
            taken["started"] = time.monotonic() - began
            note("start")
            readers = Readers(port)
            time.sleep(WATCHED)
            note("watched")
            for process in held:
                process.send_signal(signal.SIGSTOP)
            until(lambda: all(task["attempt"] == 2 for task in status(port)["tasks"]), 2.0)
            note("expire")
            for process in held:
                process.send_signal(signal.SIGCONT)
            until(lambda: running(2), 2.0)
            note("back")
            readers.stop()
            taken["answer"] = sorted(readers.waits)[len(readers.waits) // 2]
        finally:
            for process in started:
                process.kill()
                process.communicate()
        return taken


def measure(runs: int) -> list[figures.Row]:
    taken = [once() for _ in range(runs)]
    phases = {
        "start": "all start",
        "watched": "20 readers ask for the status each second",
        "expire": "all expire together",
        "back": "all begin anew",
    }
    rows = [
        figures.Row(f"longest turn while {words}", [one[phase] for one in taken], "s", 0.5)
        for phase, words in phases.items()
    ]
    return [
        *rows,
        figures.Row("the master's memory, the most", [one["memory"] for one in taken], "MiB", 1024),
        figures.Row("until all run", [one["started"] for one in taken]),
        figures.Row("a reader's wait for the status, median", [one["answer"] for one in taken]),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["master"]:
        sys.exit(master(*sys.argv[2:]))
    elif sys.argv[1:2] == ["agents"]:
        agents(*map(int, sys.argv[2:]))
    else:
        figures.main(measure, 1, __doc__)
