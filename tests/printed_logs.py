"""A job's logs in a folder, as its pages read them, and a reader of the pages: for tests and benchmarks of pages without a master."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from trainmaster.core.spec.job import Logs
from trainmaster.log.output import MASTER, Printed, attempts, folder
from trainmaster.log.storage import LocalStorage
from trainmaster.web.contract import Records, Unknown


class PrintedLogs:
    """The `Facts` of a job of which only the logs are there. `rows`: its tasks, as in a status; who changes them calls `wake`."""

    def __init__(self, place: Path, *tasks: str, logs: Logs | None = None) -> None:
        self.place, self.logs = place, logs or Logs()
        self.rows: dict[str, dict[str, Any]] = {
            task: {"task": task, "state": "running", "attempt": 1, "started": 1.0} for task in tasks
        }
        self.ended: float | None = None
        self.opened: list[tuple[str, int]] = []  # the readings that were begun: task and offset
        self._version, self._news = 1, asyncio.Condition()

    def path(self, task: str, attempt: int) -> Path:
        path = self.place / folder(task) / f"{attempt}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    async def print(self, task: str, data: bytes, attempt: int = 1) -> None:
        with self.path(task, attempt).open("ab") as file:
            file.write(data)
        await self.wake()

    async def wake(self) -> None:
        self._version += 1
        async with self._news:
            self._news.notify_all()

    # -- facts --

    def description(self) -> Mapping[str, Any]:
        return {"job": {"name": "digits"}}

    def shown_status(self) -> dict[str, Any]:
        return {"job": "digits-abcdef", "ended": self.ended, "epoch": 1, "tasks": list(self.rows.values())}

    async def changed(self, version: int, within: float) -> int:
        async with self._news:
            await self._news.wait_for(lambda: self._version != version)
        return self._version

    async def stored(self, task: str, attempt: int | None = None) -> tuple[int, int]:
        number = attempt or max(attempts(LocalStorage(self.place), LocalStorage(self.place), task), default=1)
        return number, self._printed(task, number).size

    async def log(self, task: str, attempt: int | None, offset: int, follow: bool) -> Records:
        if task != MASTER and task not in self.rows:
            raise Unknown(f"the job has no task {task}")
        number = attempt or 1
        self.opened.append((task, offset))
        while True:
            version, row = self._version, self.rows.get(task, {})
            growing = follow and self.ended is None and row.get("attempt") == number and row["state"] == "running"
            for piece in self._printed(task, number).pieces(offset, growing):
                yield {"task": task, "attempt": number, **piece}
                offset = piece["next"]
            if not growing:
                return
            await self.changed(version, 60.0)

    def _printed(self, task: str, attempt: int) -> Printed:
        return Printed(LocalStorage(self.place), LocalStorage(self.place), task, attempt, self.logs)


@attrs.define
class Answer:
    """The answer to a GET. `parts` fills while the body comes."""

    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    parts: list[bytes] = attrs.field(factory=list)
    over: bool = False

    @property
    def text(self) -> str:
        return b"".join(self.parts).decode()


async def get(app: Any, address: str, answer: Answer | None = None, headers: Mapping[str, str] | None = None) -> Answer:
    """Ask an ASGI application for a page, and return the whole answer. A caller who hands in an `answer` may look at it meanwhile."""
    url, answer = urlsplit(address), answer or Answer()
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "path": url.path, "raw_path": url.path.encode(), "root_path": "",
        "query_string": url.query.encode(), "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"127.0.0.1"), *((name.encode(), value.encode()) for name, value in (headers or {}).items())],
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }  # fmt: skip
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.parts.append(message.get("body", b""))
            answer.over = not message.get("more_body")

    await app(scope, receive, send)
    return answer
