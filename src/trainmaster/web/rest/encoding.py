"""Answers as JSON, as lines of JSON and as server-sent events.

A program may report an infinite figure, or NaN. JSON cannot write these, so they become null.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any

import attrs
from starlette.responses import Response, StreamingResponse

from trainmaster.web.contract import Records

JSON, LINES, SERVER_EVENTS = "application/json", "application/x-ndjson", "text/event-stream"
QUIET = 15.0  # s after which a stream of server-sent events shows that it lives: proxies close what is silent
RETRY = 1000  # ms until a browser connects again


class Encoded:
    """An encoder of items; a status that many readers share is encoded once."""

    def __init__(self) -> None:
        self._status: Mapping[str, Any] | None = None
        self._text = b""

    def status(self, status: Mapping[str, Any]) -> bytes:
        if self._status is not status:
            self._status, self._text = status, encode(status)
        return self._text

    def item(self, item: Mapping[str, Any]) -> bytes:
        return b'{"status":' + self.status(item["status"]) + b"}" if item.keys() == {"status"} else encode(item)


def encode(item: Any) -> bytes:
    """Return plain data as JSON, with attrs classes as maps of their fields."""
    try:
        return json.dumps(item, separators=(",", ":"), default=_plain, allow_nan=False).encode()
    except ValueError:  # infinite, or not a number
        return json.dumps(_finite(item), separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    return dict(value) if isinstance(value, Mapping) else list(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_finite(item) for item in value]
    return _finite(_plain(value))


def json_answer(item: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(item), status, headers, JSON)


def lines(items: Records, encode: Callable[[Mapping[str, Any]], bytes] = encode) -> Response:
    """Return a stream of one JSON object per line."""

    async def encoded() -> AsyncIterator[bytes]:
        async for item in items:
            yield encode(item) + b"\n"

    return StreamingResponse(encoded(), media_type=LINES)


def server_events(items: Records, end: Callable[[], Mapping[str, Any]]) -> Response:
    """Return a stream of events: `event` with the number as its id, and at last `end`, the job's status."""

    async def encoded() -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % RETRY
        async for item in _with_signs_of_life(items):
            yield b": \n\n" if item is None else _server_event("event", item, item["n"])
        yield _server_event("end", end())

    return StreamingResponse(
        encoded(), media_type=SERVER_EVENTS, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


def _server_event(name: str, item: Mapping[str, Any], number: int | None = None) -> bytes:
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: " + name.encode() + b"\ndata: " + encode(item) + b"\n\n"


async def _with_signs_of_life(items: Records) -> AsyncIterator[Mapping[str, Any] | None]:
    """Yield the items, and None after each while without any."""

    async def following() -> Mapping[str, Any] | None:
        return await anext(items, None)

    pending = asyncio.create_task(following())
    try:
        while True:
            await asyncio.wait([pending], timeout=QUIET)
            if not pending.done():
                yield None
                continue
            if (item := pending.result()) is None:
                return
            yield item
            pending = asyncio.create_task(following())
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await items.aclose()


async def first_and_rest(first: Mapping[str, Any] | None, rest: Records) -> Records:
    """Yield an item that was read ahead, then the rest."""
    async with aclosing(rest):
        if first is not None:
            yield first
            async for item in rest:
                yield item
