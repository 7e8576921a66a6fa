"""Serving what was printed to those who follow it, from the spool's file, at their own pace.

A follower has a credit of frames; each message spends one, a `window` of the reader's gives some back, so a reader that is slow costs no
memory here and delays nobody. What the spool left out before the follower came to it is told by a mark. A follower that reads the file
itself hears only how far the output has come (`bare`): one message then stands for all that was printed since the one before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs

from trainmaster.log.output import Gap, piece

PIECE = 24 * 1024  # bytes of output in one message
CREDIT = 8  # frames a follower may be behind
FOLLOWERS = 256


@attrs.define(slots=True)
class Follower:
    id: int
    attempt: int
    position: int
    once: bool = False  # only what is there when it is served first
    until: int | None = None  # the position where that ends
    bare: bool = False  # only positions, no data
    credit: int = CREDIT


@attrs.frozen(slots=True)
class Source:
    """Where an attempt's output is, of which the `first` bytes are kept in any case; whether it still grows."""

    path: str
    first: int
    growing: bool = False


class Follows:
    """The followers of one agent. `source` gives an attempt's output, None while it has not begun."""

    def __init__(self, task: str, source: Callable[[int], Source | None]) -> None:
        self._task, self._source = task, source
        self._followers: dict[int, Follower] = {}

    def follow(self, number: int, attempt: int, position: int, once: bool = False, bare: bool = False) -> None:
        if len(self._followers) < FOLLOWERS:
            self._followers[number] = Follower(number, attempt, max(0, position), once, bare=bare)

    def unfollow(self, number: int) -> None:
        self._followers.pop(number, None)

    def window(self, number: int, frames: int) -> None:
        if (follower := self._followers.get(number)) is not None:
            follower.credit = min(1024, follower.credit + max(0, frames))

    def clear(self) -> None:
        """The connection is gone, and with it who followed."""
        self._followers.clear()

    def next(self) -> dict[str, Any] | None:
        """The next piece for whoever has credit, in turn; None where nobody can be served now."""
        for number, follower in list(self._followers.items()):
            if follower.credit > 0 and (told := self._piece(follower)) is not None:
                del self._followers[number]
                if not told["end"]:
                    self._followers[number] = follower  # behind the others
                return told
        return None

    def _piece(self, follower: Follower) -> dict[str, Any] | None:
        source = self._source(follower.attempt)
        if source is None and not follower.once:
            return None
        begin, data, size = (0, b"", 0) if source is None else _read(source, follower.position, follower.bare)
        if follower.once and follower.until is None:
            follower.until = size
        growing = source is not None and source.growing and follower.until is None
        part: dict[str, Any] | None = None
        if follower.bare and follower.position < size:
            part = {"offset": follower.position, "next": size, "data": "", "bare": True, "growing": growing}
        elif not follower.bare and (follower.until is None or follower.position < follower.until):
            part = piece(follower.position, begin, data, growing)
        if part is None and growing:
            return None
        end = {"offset": follower.position, "next": follower.position, "data": ""}
        message = {
            "type": "log", "id": follower.id, "task": self._task, "attempt": follower.attempt, **(part or end), "end": part is None,
        }  # fmt: skip
        follower.position = message["next"]
        follower.credit -= 1
        return message


def _read(source: Source, position: int, bare: bool) -> tuple[int, bytes, int]:
    """What there is from a position on (`bare`: nothing of it), where that begins, and the position at the end."""
    try:
        file = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return position, b"", 0

    def read(offset: int, size: int) -> bytes:
        return os.pread(file, size, offset)

    try:
        gap = Gap.of(read, source.first)
        size = gap.printed(os.fstat(file).st_size)
        return *((position, b"") if bare else gap.read(read, position, PIECE)), size
    finally:
        os.close(file)
