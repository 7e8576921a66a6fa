"""Readers of a job who are not its user get no token from its status, and no log makes the user's own `tm ui` connect anywhere."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import attrs
import pytest

from trainmaster.client.jobs.places import job_storage
from trainmaster.client.ui.links import Links
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.web.redacted import redacted

TOKEN = "LINKSECRET0008"
LINKS = {"nb": {"role": "worker", "port": "http", "path": f"/lab?token={TOKEN}"}}


def test_a_stream_and_events_are_redacted_for_readers() -> None:
    @attrs.define
    class Facts:
        whole: dict[str, Any]

        def shown_status(self) -> dict[str, Any]:
            return self.whole

        async def stream(self, *_: Any) -> Any:
            for item in (
                {"status": self.whole},
                {"log": {"data": "x"}},
                {"event": {"detail": "d?sig=abc12345"}},
                {"end": self.whole},
            ):
                yield item

        async def events(self, *_: Any) -> Any:
            yield {"detail": "d?sig=abc12345"}

    status = {
        "links": {"nb": f"http://n:1/?token={TOKEN}"},
        "tasks": [{"tail": ["x VALUE-OF-ENV"]}],
        "ended": None,
        "at": 1.5,
    }
    facts: Any = redacted(Facts(status), ("VALUE-OF-ENV",))  # type: ignore[arg-type]
    shown = {**status, "links": {"nb": "http://n:1/?token=[redacted]"}, "tasks": [{"tail": ["x [redacted]"]}]}
    assert (facts.status(), facts.shown_status()) == (shown, shown)
    assert facts.shown_status() is facts.shown_status()

    async def scene() -> tuple[list[Any], list[Any]]:
        return [item async for item in facts.stream(0, False, None)], [event async for event in facts.events(0, False)]

    event = {"detail": "d?sig=[redacted]"}
    assert asyncio.run(scene()) == (
        [{"status": shown}, {"log": {"data": "x"}}, {"event": event}, {"end": shown}],
        [event],
    )


def test_the_status_of_a_large_job_is_redacted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [
        {"task": f"worker:{n}", "state": "running", "phase": "running", "container": f"c_{n}"} for n in range(2000)
    ]

    class Facts:
        def shown_status(self) -> dict[str, Any]:
            return {"links": {}, "tasks": [dict(task) for task in tasks]}

    facts = redacted(Facts())  # type: ignore[arg-type]
    facts.shown_status()
    began = time.process_time()
    facts.shown_status()
    assert time.process_time() - began < 0.25


def test_nothing_is_connected_to_that_a_log_names(home: object) -> None:
    """The job is over, and no master answers; another user writes its log, which names a listener of theirs."""
    folder = job_storage("lab-aaaaaa")
    folder.mkdir(parents=True)
    described = {"name": "lab", "links": LINKS, "roles": {"worker": {"ports": {"http": 0}, "command": "true"}}}
    (folder / "job.json").write_text(json.dumps(job_to(job_from(described))))
    (folder / "site.json").write_text('{"engine": "local"}')
    (folder / "token").write_text("0" * 64)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/lab"
        status = {"links": {"nb": address}, "ended": None, "tasks": [{"task": "worker:0", "container": "c"}]}

        async def scene() -> str:
            async def status_of(job: str) -> Any:
                return status

            links = Links(0, status_of)
            entry = await links.entry("lab-aaaaaa", "nb")
            parts = urllib.parse.urlsplit(entry)
            answers: list[Any] = []

            async def send(message: Any) -> None:
                answers.append(message)

            async def receive() -> Any:
                return {"type": "http.request", "body": b""}

            async def ask(path: str, query: str, cookie: bytes) -> list[Any]:
                answers.clear()
                headers = [(b"host", parts.netloc.encode()), (b"cookie", cookie)]
                scope = {
                    "type": "http", "method": "GET", "scheme": "http", "path": path, "raw_path": path.encode(),
                    "query_string": query.encode(), "headers": headers,
                }  # fmt: skip
                await links(scope, receive, send)
                return list(answers)

            entered = await ask(parts.path, parts.query, b"")
            cookie = next(value for name, value in entered[0]["headers"] if name == b"set-cookie").partition(b";")[0]
            return re.sub(r"\s+", " ", str(await ask("/lab", "", cookie)))

        assert "does not run now" in asyncio.run(asyncio.wait_for(scene(), 60))
        with pytest.raises(BlockingIOError):
            listener.accept()
