"""A plain object with the facts of a job, and an HTTP server for the interface that shows it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs

from trainmaster.core.machine.report import status
from trainmaster.core.machine.state import State, populate
from trainmaster.core.metrics import Series
from trainmaster.core.spec.reading import job_from
from trainmaster.core.timeline import Attempt, Epoch, Generation, Mark, Timeline
from trainmaster.log.output import exact
from trainmaster.master.connections.serve import Listener
from trainmaster.web.contract import Records, Unknown

JOB = "digits-aaaaaa"


class Facts:
    """A job of two workers; the first has had two attempts. `printed`: the pieces of its output."""

    def __init__(self, name: str = "digits") -> None:
        self.state = State(id=JOB)
        populate(self.state, job_from({"name": name, "roles": {"worker": {"command": "true", "replicas": 2}}}))
        self.state.n = 25
        self.state.tasks["worker:0"].attempt = 2
        self.samples: dict[str, dict[str, Any]] = {}
        self.measured: list[Series] = []
        self.printed: list[dict[str, Any]] = [{"offset": 0, "next": 6, "data": "hello\n"}]
        self.more_events = asyncio.Event()  # until then, who follows waits

    async def changed(self, version: int, within: float) -> int:
        return version + 1

    def description(self) -> Mapping[str, Any]:
        return {"job": {"name": self.state.known_job.name}, "sources": {}, "engine": "local", "user": "ann"}

    async def timeline(self) -> Timeline:
        attempts = {("worker:0", number): Attempt("worker:0", number, began=float(number)) for number in (1, 2)}
        return Timeline(
            25, 2.0, attempts, [Generation(0, 1, 1.0, {"worker:0": 0})], [Epoch(1, 0.0, "here")], [Mark(1.5, "restart", "again")]
        )  # fmt: skip

    async def metrics(
        self, tasks: Collection[str] | None = None, names: Collection[str] | None = None, since: float = 0.0
    ) -> Sequence[Series]:
        return [row for row in self.measured if tasks is None or row.task in tasks]

    def status(self) -> dict[str, Any]:
        facts = status(self.state)
        for task in facts["tasks"]:
            task |= self.samples.get(task["task"], {})
        return facts

    shown_status = status

    async def events(self, after: int, follow: bool) -> Records:
        for n in range(after + 1, self.state.n + 1):
            yield {"v": "1.1", "n": n, "at": float(n), "epoch": 1, "type": "progressed", "task": "worker:0"}
        if follow and self.state.ended is None:
            await self.more_events.wait()
            yield {"v": "1.1", "n": self.state.n + 1, "at": 30.0, "epoch": 1, "type": "ended"}

    async def log(self, task: str, attempt: int | None, offset: int, follow: bool) -> Records:
        self._check(task, attempt)
        for piece in self.printed:
            if piece["next"] > offset:
                cut = exact(piece["data"])[max(0, offset - piece["offset"]) :].decode("utf-8", "surrogateescape")
                data = piece["data"] if "left_out" in piece else cut
                yield {
                    **piece,
                    "task": task,
                    "attempt": attempt or 2,
                    "offset": max(offset, piece["offset"]),
                    "data": data,
                }

    async def stored(self, task: str, attempt: int | None = None) -> tuple[int, int]:
        self._check(task, attempt)
        return attempt or 2, self.printed[-1]["next"] if self.printed else 0

    def _check(self, task: str, attempt: int | None) -> None:
        if task != "worker:0" or (attempt or 0) > 2:
            raise Unknown(f"the job has no task {task}")

    async def stream(self, after: int, logs: bool, tail: int | None, bare: bool = False) -> Records:
        async for event in self.events(after, False):
            yield {"event": event}
        yield {"end": self.status()}


class Acts:
    """Keeps what it was asked for."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        async def act(*arguments: Any) -> Any:
            self.done.append((name, *arguments))
            if name == "scale" and arguments[0] != "worker":
                raise ValueError("there is no such role")
            return {"due": 1.0} if name == "renew" else "a-name"

        return act


@attrs.frozen
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@attrs.frozen
class Server:
    port: int
    loop: asyncio.AbstractEventLoop

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        """One request, with the token unless another one is given. A path is sent as it is."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Authorization": "Bearer token", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        try:
            line.request(method, path, body, sent)
            answer = line.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            line.close()

    def post(self, action: str, body: Any = None, **headers: str) -> Answer:
        return self.ask(f"/api/v1/jobs/{JOB}/actions/{action}", "POST", body, **headers)


@contextmanager
def serving(app: Any) -> Iterator[Server]:
    """Serve an application on a port of 127.0.0.1, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="rest")
    bound = socket.create_server(("127.0.0.1", 0))
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def listening() -> Listener:
        listener = Listener(app)
        await listener.on_tcp(bound)
        return listener

    try:
        listener = run(listening())
        try:
            yield Server(bound.getsockname()[1], loop)
        finally:
            run(listener.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
