"""Serving what was printed to those who follow it, from the spool's file, at their own pace.

A follower has a credit of frames; each message spends one, a `window` of the reader's gives some back, so a reader that is slow costs no
memory here and delays nobody. What the spool left out before the follower came to it is told by a mark. A follower that reads the file
itself hears only how far the output has come (`bare`): one message then stands for all that was printed since the one before.

The disk may hang, so the file is read elsewhere (`beside`): `next` hands out what was read, and has more read once that is used up, where
the source says that there is more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from trainmaster.core.plain import Plain
from trainmaster.log.output import Gap, piece

PIECE = 24 * 1024  # bytes of output in one message
CREDIT = 8  # frames a follower may be behind
AHEAD = CREDIT * PIECE  # bytes read at once
CHARACTER = 4  # bytes of the longest one in UTF-8
FOLLOWERS = 256


@attrs.frozen(slots=True, eq=False, repr=False)
class Source(Plain):
    """Where an attempt's output is, of which the `first` bytes are kept in any case; whether it still grows.

    `printed` differs each time that it has grown. `begun`: else a file that is not there may still come.
    """

    path: str
    first: int
    growing: bool = False
    printed: int = -1
    begun: bool = True


@attrs.frozen(slots=True, eq=False, repr=False)
class Chunk:
    """What a source had for a follower at `position`: `data`, from `begin` to `end`; `size` is the position at the end of all of it."""

    source: Source
    position: int
    begin: int
    data: bytes
    end: int
    size: int

    def serves(self, source: Source, position: int) -> bool:
        """Return whether it tells what there is at a position now: whole characters, or that there is nothing."""
        unchanged = self.source == source
        return self.end - position >= CHARACTER or (unchanged and (position == self.position or self.end >= self.size))

    def at(self, position: int) -> tuple[int, bytes]:
        """Return the data of one message from a position on, and where that begins."""
        begin = max(position, self.begin)
        return begin, self.data[begin - self.begin : begin - self.begin + PIECE]


@attrs.define(slots=True, eq=False, repr=False)
class Follower:
    id: int
    attempt: int
    position: int
    once: bool = False  # only what is there when it is served first
    until: int | None = None  # the position where that ends
    bare: bool = False  # only positions, no data
    credit: int = CREDIT
    chunk: Chunk | None = None
    reading: bool = False


Beside: TypeAlias = Callable[[Callable[[], Chunk], Callable[[Chunk], None]], None]
"""`beside(act, then)`: do `act` where it may block, and call `then` with the result."""


class Follows:
    """The followers of one agent. `source` gives an attempt's output, None while it has not begun. `wake` is called once there is more."""

    def __init__(
        self, task: str, source: Callable[[int], Source | None], beside: Beside = lambda act, then: then(act()),
        wake: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._task, self._source, self._beside, self._wake = task, source, beside, wake
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
        chunk = None
        if source is not None and (follower.until is None or follower.position < follower.until):
            chunk = self._look(follower, source)
            if chunk is None or not (chunk.size or source.begun or follower.once):
                return None
        if follower.once and follower.until is None:
            follower.until = 0 if chunk is None else chunk.size
        growing = source is not None and source.growing and follower.until is None
        part: dict[str, Any] | None = None
        if chunk is not None and follower.bare and follower.position < chunk.size:
            part = {"offset": follower.position, "next": chunk.size, "data": "", "bare": True, "growing": growing}
        elif chunk is not None and not follower.bare:
            part = piece(follower.position, *chunk.at(follower.position), growing)
        if part is None and growing:
            return None
        end = {"offset": follower.position, "next": follower.position, "data": ""}
        message = {
            "type": "log", "id": follower.id, "task": self._task, "attempt": follower.attempt, **(part or end), "end": part is None,
        }  # fmt: skip
        follower.position = message["next"]
        follower.credit -= 1
        return message

    def _look(self, follower: Follower, source: Source) -> Chunk | None:
        """Return what there is at a follower's position; None while that is being read."""

        def took(chunk: Chunk) -> None:
            follower.reading, follower.chunk = False, chunk
            self._wake()

        chunk = follower.chunk
        if chunk is not None and chunk.serves(source, follower.position):
            return chunk
        if not follower.reading:
            follower.reading, follower.chunk = True, None
            position, bare = follower.position, follower.bare
            self._beside(lambda: _read(source, position, bare), took)
        return follower.chunk


def _read(source: Source, position: int, bare: bool) -> Chunk:
    """What there is from a position on (`bare`: nothing of it). Blocks; what cannot be read is not there."""
    try:
        file = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return Chunk(source, position, position, b"", position, 0)

    def read(offset: int, size: int) -> bytes:
        return os.pread(file, size, offset)

    try:
        gap = Gap.of(read, source.first)
        size = gap.printed(os.fstat(file).st_size)
        begin, data = (position, b"") if bare else gap.read(read, position, AHEAD)
        return Chunk(source, position, begin, data, size if bare else begin + len(data), size)
    except OSError:
        return Chunk(source, position, position, b"", position, 0)
    finally:
        os.close(file)
