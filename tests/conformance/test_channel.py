"""The master's socket and whoever speaks to it: tokens, garbage, frames without end. The job it has goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import string
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import Engine, Submitted, processes_of, workers
from waiting import until

from trainmaster.host import processes

pytestmark = pytest.mark.needs("local-master")

GROWTH = 24 << 20  # bytes that the master may grow by, whatever comes


def place(job: Submitted, name: str = "master") -> str:
    """A socket of the job's master: `master` for commands, `agents` for agents."""
    from trainmaster.client.jobs.places import master_socket

    found = master_socket(job.id).with_name(f"{name}.sock")
    until(found.exists, what=f"the socket {name}")
    return str(found)


def token(job: Submitted) -> str:
    return (job.storage / "token").read_text().strip()


@contextmanager
def line(job: Submitted, name: str = "master") -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX)) as made:
        made.settimeout(30)
        made.connect(place(job, name))
        yield made


def answer(job: Submitted, request: str) -> str:
    """The first line of what the master answers to a request."""
    with line(job) as made:
        made.sendall(request.replace("\n", "\r\n").encode())
        made.shutdown(socket.SHUT_WR)
        told = b""
        while b"\r\n" not in told and (piece := made.recv(4096)):
            told += piece
        return told.partition(b"\r\n")[0].decode()


def websocket(job: Submitted, given: str | None) -> Any:
    from websockets.sync.client import unix_connect

    headers = {} if given is None else {"Authorization": given}
    return unix_connect(
        place(job, "agents"), "ws://localhost/api/v1/agent", additional_headers=headers, open_timeout=30
    )


def master(job: Submitted) -> int:
    (found,) = [made for made in processes_of(job.id) if made.kind == processes.MASTER]
    return int(found.process.pid)


def memory(pid: int) -> int:
    """Proportional set size, bytes."""
    for text in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if text.startswith("Pss:"):
            return int(text.split()[1]) * 1024
    raise AssertionError(f"{pid} has no memory")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.fixture
def job(engine: Engine) -> Iterator[Submitted]:
    """A job that runs until the test lets it end, and must then have ended well."""
    go = engine.folder / "go"
    made = engine.submit(workers(f"echo ready; while ! test -e '{go}'; do sleep 0.05; done; echo done", 2))
    for task in ("worker:0", "worker:1"):
        made.until_line("ready", task)
    yield made
    go.touch()
    status = made.succeeded()
    assert made.lines("worker:1") == ["ready", "done"]
    assert status["epoch"] == 1, "a master died"
    assert [task["attempt"] for task in status["tasks"]] == [1, 1]


GIVEN = [
    None,
    "",
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    "Basic eDp4",
    "Bearer " + "0" * 64,
    "Bearer " + "é" * 64,
    "Bearer " + "a" * 5000,
]


@pytest.mark.parametrize("path", ["", "/events", "/logs/worker:0", "/stream"])
def test_nothing_is_told_without_the_token(job: Submitted, path: str) -> None:
    for given in GIVEN:
        header = "" if given is None else f"Authorization: {given}\n"
        told = answer(job, f"GET /api/v1/jobs/{job.id}{path} HTTP/1.1\nHost: localhost\n{header}\n")
        assert told.split()[1] in ("401", "400"), (given, told)


@pytest.mark.parametrize("verb", ["kill", "save", "dump"])
def test_nothing_is_done_without_the_token(job: Submitted, verb: str) -> None:
    for given in GIVEN:
        header = "" if given is None else f"Authorization: {given}\n"
        told = answer(
            job,
            f"POST /api/v1/jobs/{job.id}/actions/{verb} HTTP/1.1\nHost: localhost\nContent-Length: 2\n{header}\n{{}}",
        )
        assert told.split()[1] in ("401", "400"), (given, told)
    told = answer(
        job,
        f"GET /api/v1/jobs/{job.id}/actions/{verb} HTTP/1.1\nHost: localhost\nAuthorization: Bearer {token(job)}\n\n",
    )
    assert told.split()[1] == "405"  # nothing is changed by a GET


def test_no_agent_without_the_token(job: Submitted) -> None:
    from websockets.exceptions import InvalidStatus

    for given in GIVEN:
        if given is not None and not given.isascii():
            continue  # no client sends it
        with pytest.raises(InvalidStatus) as refused:
            websocket(job, given)
        assert refused.value.response.status_code in (400, 403)


def test_an_agent_of_no_container_is_refused(job: Submitted) -> None:
    hello = {
        "type": "hello",
        "v": "1.0",
        "task": "worker:0",
        "serial": 99,
        "epoch": 1,
        "attempt": 1,
        "phase": "running",
        "last": 0,
    }
    for change in ({}, {"task": "worker:7", "serial": 1}, {"task": "nobody", "serial": 1}, {"v": "9.1", "serial": 1}):
        with websocket(job, f"Bearer {token(job)}") as channel:
            channel.send(json.dumps({**hello, **change}))
            assert json.loads(channel.recv(timeout=30))["type"] == "refused"
    words = "an agent of worker:0 was refused: written-off: container 99 of worker:0 is not the present one"
    assert any(words in line for line in job.lines("master"))


def test_an_agent_that_joins_twice_has_its_first_connection_closed_and_late_reports_count_nothing(
    engine: Engine,
) -> None:
    """The first connection is as one that stands still behind a network that was cut."""
    from websockets.exceptions import ConnectionClosed

    job = engine.submit(workers("echo $TRAINMASTER_ATTEMPT; sleep 1000", 1, restart={"scope": "task", "limit": 9}))
    job.until_line("1")
    assert engine.tm("kill", job.id, "worker:0").returncode == 0
    # The state, and not what is printed: an agent that is stopped before it has reported its program never does.
    until(lambda: (job.task("worker:0")["attempt"], job.task("worker:0")["state"]) == (2, "running"), what=job.said)

    def agents() -> list[processes.Process]:
        return [mark.process for mark in processes_of(job.id) if mark.kind == processes.AGENT]

    until(lambda: len(agents()) == 1, what="the end of the first one")
    (agent,) = agents()
    assert processes.send(agent, signal.SIGSTOP), "it would take its place again"
    hello = {"type": "hello", "v": "1.0", "task": "worker:0", "serial": 2, "epoch": 1, "attempt": 2}
    with websocket(job, f"Bearer {token(job)}") as first, websocket(job, f"Bearer {token(job)}") as second:
        for connection in (first, second):
            connection.send(json.dumps(hello))
            assert json.loads(connection.recv(timeout=30))["type"] == "welcome"
        with pytest.raises(ConnectionClosed):
            [first.recv(timeout=30) for _ in range(1000)]
        late = {"type": "report", "n": 1000, "attempt": 1, "kind": "ended", "reason": "exit"}
        second.send(json.dumps(late))
        words = "worker:0: a late report (ended) of attempt 1; attempt 2 is there now"
        until(lambda: any(words in line for line in job.lines("master")), what=lambda: job.lines("master"))
    assert (job.task("worker:0")["attempt"], job.task("worker:0")["state"]) == (2, "running")
    assert processes.send(agent, signal.SIGKILL), "its own reports count no more: a later one was there"
    job.run.kill()
    job.end()


# -- garbage --


def junk(choice: random.Random) -> bytes:
    return choice.randbytes(choice.choice([1, 10, 100, 5000, 70_000]))


def value(choice: random.Random, depth: int = 3) -> Any:
    """Any JSON."""
    kind = choice.randrange(9 if depth else 6)
    if kind == 0:
        return None
    if kind == 1:
        return choice.choice([0, -1, 1, 2**31, 2**63, 2**200, -(2**70)])
    if kind == 2:
        return choice.choice([0.5, -1e308, 1e-300, float("nan"), float("inf")])
    if kind == 3:
        return choice.choice([True, False])
    if kind in (4, 5):
        return "".join(choice.choices(string.printable + "é\ud800\0", k=choice.randrange(40)))
    if kind == 6:
        return [value(choice, depth - 1) for _ in range(choice.randrange(4))]
    return {choice.choice(WORDS): value(choice, depth - 1) for _ in range(choice.randrange(5))}


WORDS = ["type", "task", "serial", "attempt", "n", "kind", "id", "input", "ranges", "want", "holds", "done", "ports", "outputs", "figures",
         "reason", "status", "tail", "epoch", "part", "data", "offset", "next", "v", "last", "phase", "marks",
         "set", "elapsed"]  # fmt: skip
TYPES = ["hello", "report", "sample", "log", "lease", "welcome", "order", "ack", "nothing", ""]


def message(choice: random.Random) -> str:
    """Something like a message."""
    made: dict[str, Any] = {choice.choice(WORDS): value(choice) for _ in range(choice.randrange(8))}
    if choice.random() < 0.8:
        made["type"] = choice.choice(TYPES)
    if choice.random() < 0.1:
        made = {"part": value(choice), "id": value(choice), "data": value(choice)}
    if choice.random() < 0.1:
        return choice.choice(
            ['{"a":' * 2000, "[" * 50_000, "x" * 60_000, '"' + "a" * 60_000, "1" * 60_000, "{}", "[]", "nul", "\0"]
        )
    return json.dumps(made)


def raw(job: Submitted, choice: random.Random) -> None:
    """Bytes that are no HTTP, or not the whole of it."""
    begin = choice.choice([b"", b"GET /api/v1/jobs HTTP/1.1\r\n",
                           b"POST /api/v1/jobs/x/actions/kill HTTP/1.1\r\nContent-Length: 99999999999\r\n",
                           b"GET /api/v1/agent HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", b"GET " + b"/" * 70_000,
                           b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000])  # fmt: skip
    with line(job, choice.choice(["master", "agents"])) as made:
        send(made, begin + junk(choice))


def send(made: socket.socket, data: bytes) -> None:
    try:
        made.sendall(data)
    except OSError:  # it has hung up on us
        return


PATHS = [
    "/jobs",
    "/jobs/{job}",
    "/jobs/{job}/events",
    "/jobs/{job}/logs/",
    "/jobs/{job}/logs/worker:0",
    "/jobs/{job}/stream",
    "/jobs/{job}/actions/kill",
    "/jobs/{job}/actions/dump",
    "/agent",
    "//",
    "/%00",
]


def requests(job: Submitted, choice: random.Random) -> None:
    """Requests with the token, and nonsense in them."""
    path = choice.choice(PATHS).format(job=job.id)
    query = choice.choice(
        [
            "",
            "?after=-1",
            "?after=x",
            "?offset=99999999999999999999",
            "?attempt=0&offset=1e9",
            "?tail=%ff",
            "?follow=" + "1" * 9000,
        ]
    )
    method, body = choice.choice(["GET", "PUT", "DELETE", "HEAD", "BREW"]), junk(choice)
    head = f"{method} /api/v1{path}{query} HTTP/1.1\r\nHost: {choice.choice(['localhost', 'evil', ''])}\r\n"
    with line(job) as made:
        send(made, f"{head}Authorization: Bearer {token(job)}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        made.settimeout(0.01)
        try:
            made.recv(100)
        except OSError:  # no answer to this yet, or hung up
            return


def frames(job: Submitted, choice: random.Random) -> None:
    """Frames with the token, before any hello is admitted; the first is random, as is whether they are whole."""
    from websockets.exceptions import ConnectionClosed

    with websocket(job, f"Bearer {token(job)}") as channel:
        try:
            for _ in range(choice.randrange(1, 5)):
                content = choice.choice(
                    [message(choice), message(choice), junk(choice), "x" * choice.choice([65_000, 200_000, 5_000_000])]
                )
                if isinstance(content, str):
                    content = content.encode("utf-8", "replace").decode("utf-8", "replace")
                channel.send(content)
        except ConnectionClosed:
            return


def bombard(job: Submitted, choice: random.Random, count: int) -> None:
    """No faster than the master takes it: what garbage leaves behind is measured, not what waits for a loaded machine."""
    pid = master(job)
    opened = descriptors(pid)

    def taken() -> bool:
        return descriptors(pid) <= opened + 3

    for number in range(1, count + 1):
        choice.choice([raw, requests, frames])(job, choice)
        if number % 50 == 0:
            until(taken, what=lambda: f"{descriptors(pid)} descriptors, {opened} before")
        if number == count // 5:  # all is imported, and buffers have their size
            before = memory(pid)
    assert job.status()["state"] == "running"
    until(lambda: memory(pid) <= before + GROWTH, what=lambda: f"{memory(pid) >> 20} MiB, {before >> 20} before")
    assert master(job) == pid


def test_1000_pieces_of_garbage(job: Submitted, seeds: Any) -> None:
    for seed in seeds(1):
        bombard(job, random.Random(seed), 1000)


@pytest.mark.soak
def test_10000_pieces_of_garbage(job: Submitted, seeds: Any) -> None:
    for seed in seeds(1):
        bombard(job, random.Random(seed), 10_000)


def test_garbage_from_an_agent_that_was_admitted(engine: Engine, seeds: Any) -> None:
    """Whoever holds the token and takes a container's place may spoil that task, never the master."""
    from websockets.exceptions import ConnectionClosed

    job = engine.submit(workers("echo ready; sleep 1000", 2, restart={"limit": 1000}))
    job.until_line("ready")
    pid = master(job)
    for seed in seeds(100):
        choice = random.Random(seed)
        serial = next(event["serial"] for event in reversed(job.told("granted")) if event["task"] == "worker:0")
        hello = {
            "type": "hello",
            "v": "1.0",
            "task": "worker:0",
            "serial": serial,
            "epoch": 1,
            "attempt": 1,
        }
        with websocket(job, f"Bearer {token(job)}") as channel:
            try:
                channel.send(
                    json.dumps({**hello, choice.choice(["holds", "node", "address", "container"]): value(choice)})
                )
                for n in range(10):
                    told = {choice.choice(WORDS): value(choice) for _ in range(5)}
                    kinds = [
                        "staging",
                        "ready",
                        "started",
                        "progress",
                        "ended",
                        "uploaded",
                        "committed",
                        "checkpoint",
                        "saved",
                        "shards-done",
                        "left",
                    ]
                    report = {
                        "type": "report",
                        "n": n + 1,
                        "attempt": choice.choice([1, 2]),
                        "kind": choice.choice(kinds),
                    }
                    made = {**told, **report} if choice.random() < 0.7 else {**told, "type": choice.choice(TYPES)}
                    channel.send(json.dumps(made).encode("utf-8", "replace").decode("utf-8", "replace"))
            except ConnectionClosed:
                continue
        assert job.status()["epoch"] == 1
        if job.status()["state"] in ("succeeded", "failed", "killed", "ending"):
            break  # garbage may say that the task has ended
    else:
        assert master(job) == pid
    job.run.kill()
    job.end()
    assert "Traceback" not in "".join(path.read_text() for path in (job.storage / "logs/master").glob("start.log"))
