"""Serving what was printed to those who follow it, from the spool's file, at their own pace.

A follower has a credit of frames; each message spends one, a `window` of the reader's gives some back, so a reader that is slow costs no
memory here and delays nobody. Offsets are the file's, in bytes; the text is decoded for reading, a binary's bytes replaced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import attrs

from trainmaster.agent.spool import Spool

PIECE = 24 * 1024  # bytes of output in one message
CREDIT = 8  # frames a follower may be behind
FOLLOWERS = 256


@attrs.define(slots=True)
class Follower:
    id: int
    attempt: int
    offset: int
    credit: int = CREDIT


@attrs.frozen(slots=True)
class Source:
    """Where an attempt's output is; `spool` while it is still being written."""

    path: str
    spool: Spool | None = None


class Follows:
    """The followers of one agent. `source` gives an attempt's output, None while it has not begun."""

    def __init__(self, task: str, source: Callable[[int], Source | None]) -> None:
        self._task, self._source = task, source
        self._followers: dict[int, Follower] = {}

    def follow(self, number: int, attempt: int, offset: int) -> None:
        if len(self._followers) < FOLLOWERS:
            self._followers[number] = Follower(number, attempt, max(0, offset))

    def unfollow(self, number: int) -> None:
        self._followers.pop(number, None)

    def window(self, number: int, frames: int) -> None:
        if (follower := self._followers.get(number)) is not None:
            follower.credit = min(1024, follower.credit + max(0, frames))

    def clear(self) -> None:
        """The connection is gone, and with it who followed."""
        self._followers.clear()

    def moved(self, attempt: int, after: int, by: int) -> None:
        """What stood at `after` and later now stands `by` bytes earlier; what stood just before it is gone."""
        for follower in list(self._followers.values()):
            if follower.attempt == attempt and follower.offset > after - by:
                follower.offset = max(after - by, follower.offset - by)

    def next(self) -> dict[str, Any] | None:
        """The next piece for whoever has credit, in turn; None where nobody can be served now."""
        for number, follower in list(self._followers.items()):
            if follower.credit > 0 and (piece := self._piece(follower)) is not None:
                del self._followers[number]
                if not piece["end"]:
                    self._followers[number] = follower  # behind the others
                return piece
        return None

    def _piece(self, follower: Follower) -> dict[str, Any] | None:
        source = self._source(follower.attempt)
        if source is None:
            return None
        with contextlib.ExitStack() as stack:
            if source.spool is not None:
                stack.enter_context(source.spool.lock)
            offset, data = follower.offset, _read(source.path, follower.offset)
        closed = source.spool is None
        end = closed and len(data) < PIECE
        if not data and not end:
            return None
        if not end:
            data = whole_characters(data)
        follower.offset += len(data)  # not from `offset`: it may have been moved meanwhile
        follower.credit -= 1
        return {
            "type": "log", "id": follower.id, "task": self._task, "attempt": follower.attempt, "offset": offset,
            "next": offset + len(data), "data": data.decode("utf-8", "replace"), "end": end,
        }  # fmt: skip


def _read(path: str, offset: int) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(file, PIECE, offset)
    finally:
        os.close(file)


def whole_characters(data: bytes) -> bytes:
    """`data` without a UTF-8 character cut off at its end, where something is left then."""
    for back in range(1, min(4, len(data))):
        byte = data[-back]
        if byte >= 0xC0:  # the first byte of a character of 2 to 4 bytes
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < length else data
        if byte < 0x80:
            break
    return data
