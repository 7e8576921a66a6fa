"""Export a job as files that open without any server: its pages, logs, events and samples.

The pages are those that a server shows, asked for in this process; links between them become names of files, and what only a server can do
(forms, actions, updates) is left out.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

import attrs

from trainmaster.core.errors import StorageFailed
from trainmaster.core.foreign import number_in
from trainmaster.log.output import MASTER, exact
from trainmaster.web.contract import Facts, Reader
from trainmaster.web.pages.app import job_pages
from trainmaster.web.pages.render import STATIC

_LINK = re.compile(r'<a ([^>]*)href="([^"]*)"([^>]*)>(.*?)</a>', re.DOTALL)
_SERVED = re.compile(r'<form .*?</form>|<p class="actions".*?</p>|<p id="offline".*?</p>', re.DOTALL)
_ABSOLUTE = re.compile(r"[a-z]+:|#")


Say = Callable[[str, str], object]  # is called with each file that was written, and with each that could not be and why


async def export(facts: Facts, folder: Path, say: Say = lambda name, why: None) -> None:
    """Write the job into a folder, whose `index.html` is its page."""
    application = job_pages(facts, lambda request: Reader(live=False), is_exported=True)
    logs = await _write_logs(facts, folder, say)
    pages, seen = deque([""]), {""}
    while pages:
        address = pages.popleft()
        status, content = await _get(application, address)
        name = file_name(address)
        say(name, "" if status == 200 else f"its page answered {status}")
        if status != 200:
            continue
        depth = name.count("/")

        def target(link: str, address: str = address, depth: int = depth) -> str | None:
            """Return a link of the page as one to a file; None where there is no such file."""
            if _ABSOLUTE.match(link):
                return link
            other, _, anchor = _joined(address, link).partition("#")
            file = logs.get(_log_key(other)) if other.startswith("logs") else file_name(other)
            if file is None or other.startswith(("actions/", "?")):
                return None
            if not other.startswith(("logs", "static/")) and other not in seen:
                seen.add(other)
                pages.append(other)
            return "../" * depth + file + (f"#{anchor}" if anchor else "")

        _write(folder / name, _rewritten(content.decode(), target).encode())
    for path in (path for path in STATIC.rglob("*") if path.is_file()):
        _write(folder / "static" / path.relative_to(STATIC), path.read_bytes())
    await _write_data(facts, folder)


def file_name(address: str) -> str:
    """Return the name of the file of a page, by its address below the job's root: `tasks/worker:0` is `tasks/worker-0.html`."""
    path, _, query = unquote(address).partition("?")
    if not path:
        return "index.html"
    if path.startswith("static/"):
        return path
    before = parse_qs(query).get("before", [""])[0]
    return path.replace(":", "-") + (f"-{before}" if before.isdigit() else "") + ".html"


def _joined(address: str, link: str) -> str:
    """Return the address that a link on a page means, below the job's root."""
    parts = address.partition("?")[0].split("/")[:-1]
    path, mark, query = link.replace("&amp;", "&").partition("?")
    if not path and mark:
        return address.partition("?")[0] + mark + query
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part != ".":
            parts.append(part)
    return "/".join(parts) + mark + query


def _rewritten(html: str, target: Callable[[str], str | None]) -> str:
    def link(match: re.Match[str]) -> str:
        address = target(match[2])
        return match[4] if address is None else f'<a {match[1]}href="{address}"{match[3]}>{match[4]}</a>'

    return _LINK.sub(link, _SERVED.sub("", html))


def _log_key(address: str) -> tuple[str, int]:
    """Return the task and the attempt (0: the last) of a link to a log."""
    parts = urlsplit(address)
    attempt = parse_qs(parts.query).get("attempt", ["0"])[0]
    return unquote(parts.path.removeprefix("logs").strip("/")), number_in(attempt) or 0


async def _write_logs(facts: Facts, folder: Path, say: Say) -> dict[tuple[str, int], str]:
    """Write every attempt's output; return the names of the files by (task, attempt), attempt 0 being the last."""
    timeline = await facts.timeline()
    attempts = [*timeline.attempts, *((MASTER, epoch.epoch) for epoch in timeline.epochs)]
    names = {}
    for task, attempt in attempts:
        name = f"logs/{task.replace(':', '-')}/{attempt}.txt"
        pieces = (exact(str(piece["data"])) async for piece in facts.log(task, attempt, 0, False))
        try:
            if await _write_all(folder / name, pieces):
                say(name, "")
                names[task, attempt] = names[task, 0] = name
        except (StorageFailed, LookupError) as error:  # the rest is worth having
            say(name, str(error))
    return names


async def _write_data(facts: Facts, folder: Path) -> None:
    """Write what programs read: the status, the job, the events, the samples."""
    _write(folder / "status.json", _encoded(facts.status()))
    _write(folder / "job.json", _encoded(dict(facts.description())))
    _write(folder / "metrics.json", _encoded([_plain(row) for row in await facts.metrics()]))
    lines = (json.dumps(event, separators=(",", ":")).encode() + b"\n" async for event in facts.events(0, False))
    await _write_all(folder / "events.jsonl", lines)


async def _write_all(path: Path, pieces: AsyncIterator[bytes]) -> int:
    """Write a file piece by piece; return its size. No file is made of nothing."""
    size = 0
    with ExitStack() as stack:
        async for piece in pieces:
            if not size:
                file = stack.enter_context(_begun(path))
            size += file.write(piece)
    return size


def _begun(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb")


def _plain(row: Any) -> Mapping[str, Any]:
    fields = attrs.asdict(row, recurse=False)
    return {name: value if isinstance(value, str) else list(value) for name, value in fields.items()}


def _encoded(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


async def _get(application: Any, address: str) -> tuple[int, bytes]:
    """Ask an ASGI application of this process for a page."""
    path, _, query = address.partition("?")
    sent: list[Mapping[str, Any]] = []

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/" + unquote(path),
        "raw_path": f"/{path}".encode(), "query_string": query.encode(), "root_path": "", "headers": [], "client": None, "server": None,
    }  # fmt: skip
    await application(scope, receive, send)
    return sent[0]["status"], b"".join(_bodies(sent))


def _bodies(messages: list[Mapping[str, Any]]) -> Iterator[bytes]:
    return (message.get("body", b"") for message in messages if message["type"] == "http.response.body")
