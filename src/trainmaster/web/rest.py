"""The REST interface under /api/v1: JSON and newline-delimited JSON, for the commands and for programs.

Every request carries the job's token. A request that changes something is a POST. A stream is one JSON object per line, and goes on until
the job has ended or the reader leaves.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trainmaster.core.errors import StorageFailed
from trainmaster.web.contract import Acts, Facts, Unknown

PREFIX = "/api/v1"
_BODY_LIMIT = 64 * 1024
LONGEST_CUT = 3600.0  # s
UNREADABLE = 503  # the status of an answer that the storage keeps from a reader

Endpoint = Callable[[Request], Awaitable[Response]]


def rest(facts: Facts, acts: Acts, token: str) -> Starlette:
    """Return the ASGI application of one job."""

    def guarded(endpoint: Endpoint) -> Endpoint:
        async def checked(request: Request) -> Response:
            if not authorized(request.headers.get("authorization", ""), token):
                return _error_response(401, "the job's token is missing or wrong")
            try:
                return await endpoint(request)
            except Unknown as error:
                return _error_response(404, str(error))
            except ValueError as error:
                return _error_response(400, str(error))
            except StorageFailed as error:
                return _error_response(UNREADABLE, str(error))

        return checked

    encoded = _Encoded()

    async def status(request: Request) -> Response:
        return Response(encoded.status(facts.shown_status()), media_type="application/json")

    async def events(request: Request) -> Response:
        return _lines(facts.events(_number(request, "after"), _flag(request, "follow")))

    async def log(request: Request) -> Response:
        attempt = _number(request, "attempt") or None
        pieces = facts.log(request.path_params["task"], attempt, _number(request, "offset"), _flag(request, "follow"))
        first = await anext(pieces, None)  # an unknown task is a 404, not a broken stream
        return _lines(_first_and_rest(first, pieces))

    async def stream(request: Request) -> Response:
        tail = _number(request, "tail") if "tail" in request.query_params else None
        logs, bare = _flag(request, "logs"), _flag(request, "bare")
        return _lines(facts.stream(_number(request, "after"), logs, tail, bare), encoded.item)

    gets = {"/status": status, "/events": events, "/logs/{task}": log, "/stream": stream}
    routes = [Route(PREFIX + path, guarded(endpoint), methods=["GET"]) for path, endpoint in gets.items()]
    routes += [Route(PREFIX + path, guarded(endpoint), methods=["POST"]) for path, endpoint in _actions(acts).items()]
    return Starlette(routes=routes)


def _actions(acts: Acts) -> dict[str, Endpoint]:
    """Return the endpoints that change something, by path."""

    async def kill(request: Request) -> Response:
        body = await _body(request)
        by, why, task = _user(body), str(body.get("why", "")), str(body.get("task", ""))
        await (acts.kill_task(task, by, why) if task else acts.kill(by, why))
        return JSONResponse({"done": True})

    async def scale(request: Request) -> Response:
        body = await _body(request)
        size = body.get("size", "")
        if size is not None and type(size) is not int:
            raise ValueError(f"size is no number: {str(size)[:40]!r}")
        await acts.scale(str(body.get("role", "")), size, _user(body))
        return JSONResponse({"done": True})

    async def save(request: Request) -> Response:
        return JSONResponse({"save": await acts.save(_user(await _body(request)))})

    async def renew(request: Request) -> Response:
        return JSONResponse(dict(await acts.renew(await _body(request))))

    async def dump(request: Request) -> Response:
        body = await _body(request)
        await acts.dump(str(body.get("task", "")), _user(body))
        return JSONResponse({"done": True})

    async def signal(request: Request) -> Response:
        body = await _body(request)
        await acts.signal(str(body.get("task", "")), str(body.get("signal", "")), _user(body))
        return JSONResponse({"done": True})

    async def cut(request: Request) -> Response:
        body = await _body(request)
        seconds = body.get("seconds")
        if not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_CUT:
            raise ValueError(f"seconds must be a number above 0 and at most {LONGEST_CUT:g}: {str(seconds)[:40]!r}")
        await acts.cut(str(body.get("task", "")), seconds, _user(body))
        return JSONResponse({"done": True})

    return {
        "/actions/kill": kill, "/actions/scale": scale, "/actions/save": save, "/actions/renew": renew, "/actions/dump": dump,
        "/actions/signal": signal, "/actions/cut": cut,
    }  # fmt: skip


def authorized(header: str, token: str) -> bool:
    """Tell whether an Authorization header carries the token, in the same time whatever it holds."""
    return hmac.compare_digest(header.encode("utf-8", "replace"), f"Bearer {token}".encode())


class _Encoded:
    """An encoder of items as JSON; a status that many readers share is encoded once."""

    def __init__(self) -> None:
        self._status: Mapping[str, Any] | None = None
        self._text = b""

    def status(self, status: Mapping[str, Any]) -> bytes:
        if self._status is not status:
            self._status, self._text = status, _encode(status)
        return self._text

    def item(self, item: Mapping[str, Any]) -> bytes:
        return b'{"status":' + self.status(item["status"]) + b"}" if item.keys() == {"status"} else _encode(item)


def _encode(item: Mapping[str, Any]) -> bytes:
    return json.dumps(item, separators=(",", ":")).encode()


def _lines(items: AsyncIterator[Mapping[str, Any]], encode: Callable[[Mapping[str, Any]], bytes] = _encode) -> Response:
    async def encoded() -> AsyncIterator[bytes]:
        async for item in items:
            yield encode(item) + b"\n"

    return StreamingResponse(encoded(), media_type="application/x-ndjson")


async def _first_and_rest(
    first: Mapping[str, Any] | None, rest: AsyncIterator[Mapping[str, Any]]
) -> AsyncIterator[Mapping[str, Any]]:
    if first is not None:
        yield first
        async for item in rest:
            yield item


def _error_response(status: int, detail: str) -> Response:
    return JSONResponse({"error": detail}, status_code=status)


def _number(request: Request, name: str) -> int:
    value = request.query_params.get(name, "0")
    if not value.isdigit() or len(value) > 18:
        raise ValueError(f"{name} is not a number: {value[:40]!r}")
    return int(value)


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "") in ("1", "true", "yes")


def _user(body: Mapping[str, Any]) -> str:
    return str(body.get("by", "")) or "a user"


async def _body(request: Request) -> dict[str, Any]:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _BODY_LIMIT:
            raise ValueError("the request is too large")
    if not data:
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError("the request is not JSON") from error
    if not isinstance(value, dict):
        raise ValueError("the request is not a JSON object")
    return value
