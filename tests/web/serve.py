"""Serve the pages of one job of this machine: `python tests/web/serve.py JOB` prints the address."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
import uvicorn

import trainmaster
from trainmaster.client.jobs.past import Past
from trainmaster.client.jobs.places import engine_of
from trainmaster.core.machine.events import decode
from trainmaster.core.metrics import Series
from trainmaster.core.timeline import Timeline
from trainmaster.web.contract import Reader
from trainmaster.web.pages.app import job_pages

STATUS_EVERY = 0.5  # s


class JobFacts:
    """The `Facts` of a job. A thread follows its events, another one asks for its status."""

    def __init__(self, job: str) -> None:
        self._run, self._past = trainmaster.attach(job), Past(job)
        self._events: list[Mapping[str, Any]] = []
        self._timeline = Timeline()
        self._status = self._run.status()
        self._version, self._news = 1, asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        self._ended = threading.Event()
        for event in self._past.events():
            self._take(event)
        for act in (self._follow, self._ask):
            threading.Thread(target=act, daemon=True).start()

    def _take(self, event: Mapping[str, Any]) -> None:
        self._events.append(event)
        self._timeline.take(decode(json.dumps(event).encode()))

    def _follow(self) -> None:
        for event in self._run.events(follow=True):
            if event["n"] > len(self._events):
                self._loop.call_soon_threadsafe(self._note, event)

    def _ask(self) -> None:
        while not self._ended.is_set():
            status = self._run.status()
            self._loop.call_soon_threadsafe(self._note, None, status)
            if status["ended"] is not None:
                self._ended.set()
            self._ended.wait(STATUS_EVERY)

    def _note(self, event: Mapping[str, Any] | None, status: Mapping[str, Any] | None = None) -> None:
        if event is not None:
            self._take(event)
        self._status = dict(status or self._status)
        self._version += 1
        self._notifying = asyncio.ensure_future(self._notify())

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def changed(self, version: int, within: float) -> int:
        try:
            async with asyncio.timeout(within), self._news:
                await self._news.wait_for(lambda: self._version != version)
        except TimeoutError:
            pass
        return self._version

    def description(self) -> Mapping[str, Any]:
        job = self._past.job
        described = json.loads(self._past.directory.read("job.json") or b"")
        return {"job": described, "sources": {}, "engine": engine_of(job), "user": getpass.getuser(), "id": job}

    async def timeline(self) -> Timeline:
        return self._timeline

    async def metrics(
        self, tasks: Collection[str] | None = None, names: Collection[str] | None = None, since: float = 0.0
    ) -> Sequence[Series]:
        return []

    def status(self) -> dict[str, Any]:
        return self._status

    shown_status = status

    async def events(self, after: int, follow: bool) -> AsyncIterator[Mapping[str, Any]]:
        for event in self._events[after:]:
            yield event


class JobActs:
    def __init__(self, job: str) -> None:
        self._run = trainmaster.attach(job)

    async def kill(self, by: str, why: str) -> None:
        await asyncio.to_thread(self._run.kill, why)

    async def kill_task(self, task: str, by: str, why: str) -> None:
        await asyncio.to_thread(self._run.kill_task, task, why)

    async def save(self, by: str = "") -> str:
        return str(await asyncio.to_thread(self._run.save))


@attrs.frozen
class Server:
    """A process that serves a job's pages."""

    address: str
    pid: int


@contextlib.contextmanager
def served(job: str) -> Iterator[Server]:
    """Have such a process."""
    with subprocess.Popen([sys.executable, __file__, job], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Server(process.stdout.readline().strip(), process.pid)
        finally:
            process.kill()


async def main(job: str) -> None:
    reader = Reader(user=getpass.getuser(), may_act=True, csrf="the token of this session")
    pages = job_pages(JobFacts(job), lambda request: reader, JobActs(job))
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    await uvicorn.Server(uvicorn.Config(pages, log_level="error")).serve([listener])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
