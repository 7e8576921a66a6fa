"""The output of one attempt: as JSON pieces, as lines of JSON that may follow it, or as its bytes, or a range of these.

Positions are bytes printed (see `log.output`). Bytes that are no longer kept are in no answer with a range: it ends before the gap, or
begins after it, and its Content-Range says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from starlette.responses import Response, StreamingResponse

from trainmaster.log.output import exact
from trainmaster.web.rest.call import Call
from trainmaster.web.rest.encoding import LINES, first_and_rest, json_answer, lines
from trainmaster.web.rest.requests import PRINTED
from trainmaster.web.rest.words import Refusal, is_whole_match

TEXT = "text/plain"
RANGE_MOST = 4 * 2**20  # bytes in one answer with a range; it says where it ends
UNIT = "bytes="
_RANGE = rf"{UNIT}[0-9]{{0,15}}-[0-9]{{0,15}}"


async def log(call: Call) -> Response:
    task, part = call.path["task"], call.query
    if call.accepts(LINES):
        pieces = call.facts.log(task, part.attempt, part.offset, part.follow)
        return lines(first_and_rest(await anext(pieces, None), pieces))  # an unknown task is a 404, not a broken stream
    attempt, size = await call.facts.stored(task, part.attempt)
    if call.headers.get("range", "").startswith(UNIT):  # whoever asks for another unit gets the whole (RFC 9110, 14.2)
        return await _bytes_in_range(call, attempt, size)
    if call.accepts(TEXT):
        pieces = call.facts.log(task, attempt, part.offset, False)
        content = _bytes(first_and_rest(await anext(pieces, None), pieces))
        return StreamingResponse(content, media_type=TEXT, headers=_headers(task, attempt))
    return await _page(call, attempt)


async def _page(call: Call, attempt: int) -> Response:
    """Return the pieces from the offset on, up to the one that reaches the limit."""
    begin = position = call.query.offset
    rows = []
    async with aclosing(call.facts.log(call.path["task"], attempt, begin, False)) as pieces:
        async for piece in pieces:
            rows.append({key: value for key, value in piece.items() if key in ("offset", "next", "data", "left_out")})
            position = piece["next"]
            if position - begin >= call.query.limit:
                break
    return json_answer(
        {"task": call.path["task"], "attempt": attempt, "offset": begin, "next": position, "pieces": rows}
    )


async def _bytes(pieces: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield exact(piece["data"])


async def _bytes_in_range(call: Call, attempt: int, size: int) -> Response:
    """Return the bytes of a range that are kept, up to the first gap in it."""
    begin, end = _range(call.headers["range"], size)
    data, position = b"", begin
    async with aclosing(call.facts.log(call.path["task"], attempt, begin, False)) as pieces:
        async for piece in pieces:
            if "left_out" in piece and data:
                break
            if "left_out" in piece:
                begin = position = piece["next"]
            else:
                data += exact(piece["data"])[: max(0, end - position)]
                position = begin + len(data)
            if position >= end:
                break
    if not data:
        gone = f"nothing is kept of these bytes; {size} were printed so far"
        raise Refusal(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, gone, {"Content-Range": f"bytes */{size}"})
    headers = {
        "Content-Range": f"bytes {begin}-{position - 1}/{max(size, position)}",
        **_headers(call.path["task"], attempt),
    }
    return Response(data, HTTPStatus.PARTIAL_CONTENT, headers, TEXT)


def _range(header: str, size: int) -> tuple[int, int]:
    """Return begin and end of the range that a header asks for."""
    if not is_whole_match(_RANGE, header):
        raise Refusal(HTTPStatus.BAD_REQUEST, f"Range must be one range of bytes, like bytes=0-1023: {header[:40]!r}")
    first, _, last = header.removeprefix(UNIT).partition("-")
    begin = int(first) if first else max(0, size - int(last or 0))
    end = int(last) + 1 if first and last else PRINTED
    if begin >= min(end, PRINTED):
        empty = f"there are no bytes in {header[:40]}; {size} were printed so far"
        raise Refusal(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, empty, {"Content-Range": f"bytes */{size}"})
    return begin, min(end, begin + RANGE_MOST)


def _headers(task: str, attempt: int) -> dict[str, str]:
    name = f"{task.replace(':', '-')}.{attempt}.log"
    return {
        "Accept-Ranges": "bytes", "Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff",
    }  # fmt: skip
