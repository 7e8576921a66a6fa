"""Serve a task's output to its followers, from the spool's file, at their own pace.

A follower has a credit of frames. Each message spends one; the reader's `window` gives some back. So a slow reader costs no memory here and
delays nobody. A mark stands for output that the spool left out before the follower came to it. A follower that reads the file itself gets
only the position of the output's end (`bare`): one message then stands for everything printed since the one before.

The disk may hang, so the file is read elsewhere (`run_aside`): `next` hands out the bytes that were read, and has more read once they are
used up, where the source says that there is more.
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
CHARACTER = 4  # bytes of the longest character in UTF-8
FOLLOWERS = 256


@attrs.frozen(slots=True, eq=False, repr=False)
class Source(Plain):
    """An attempt's output. Its `first` bytes are kept in any case; `growing`: it still grows.

    `printed` differs each time that it has grown. Without `begun`, a missing file may still come.
    """

    path: str
    first: int
    growing: bool = False
    printed: int = -1
    begun: bool = True


@attrs.frozen(slots=True, eq=False, repr=False)
class Chunk:
    """The bytes of a source for a follower at `position`: `data`, from `begin` to `end`. `size`: the position at the output's end."""

    source: Source
    position: int
    begin: int
    data: bytes
    end: int
    size: int

    def serves(self, source: Source, position: int) -> bool:
        """Tell whether it answers for a position now: with whole characters, or with the fact that there is nothing."""
        unchanged = self.source == source
        return self.end - position >= CHARACTER or (unchanged and (position == self.position or self.end >= self.size))

    def at(self, position: int) -> tuple[int, bytes]:
        """Return where the data of one message from a position on begins, and that data."""
        begin = max(position, self.begin)
        return begin, self.data[begin - self.begin : begin - self.begin + PIECE]


@attrs.define(slots=True, eq=False, repr=False)
class Follower:
    id: int
    attempt: int
    position: int
    once: bool = False  # only the output that exists when it is first served
    until: int | None = None  # the position where that output ends
    bare: bool = False  # only positions, no data
    credit: int = CREDIT
    chunk: Chunk | None = None
    reading: bool = False


RunAside: TypeAlias = Callable[[Callable[[], Chunk], Callable[[Chunk], None]], None]
"""`run_aside(act, then)`: do `act` where it may block, and call `then` with the result."""


class Follows:
    """The followers of one agent. `source` returns an attempt's output, None until it has begun. `wake` is called once there is more."""

    def __init__(
        self, task: str, source: Callable[[int], Source | None], run_aside: RunAside = lambda act, then: then(act()),
        wake: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._task, self._source, self._run_aside, self._wake = task, source, run_aside, wake
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
        """Forget all followers: their connection is gone."""
        self._followers.clear()

    def next(self) -> dict[str, Any] | None:
        """Return the next piece for a follower with credit, in turn; None where nobody can be served now."""
        for number, follower in list(self._followers.items()):
            if follower.credit > 0 and (message := self._piece(follower)) is not None:
                del self._followers[number]
                if not message["end"]:
                    self._followers[number] = follower  # behind the others
                return message
        return None

    def _piece(self, follower: Follower) -> dict[str, Any] | None:
        source = self._source(follower.attempt)
        if source is None and not follower.once:
            return None
        chunk = None
        if source is not None and (follower.until is None or follower.position < follower.until):
            chunk = self._chunk_at(follower, source)
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

    def _chunk_at(self, follower: Follower, source: Source) -> Chunk | None:
        """Return the chunk at a follower's position; None while it is being read."""

        def keep(chunk: Chunk) -> None:
            follower.reading, follower.chunk = False, chunk
            self._wake()

        chunk = follower.chunk
        if chunk is not None and chunk.serves(source, follower.position):
            return chunk
        if not follower.reading:
            follower.reading, follower.chunk = True, None
            position, bare = follower.position, follower.bare
            self._run_aside(lambda: _read(source, position, bare), keep)
        return follower.chunk


def _read(source: Source, position: int, bare: bool) -> Chunk:
    """Read the chunk from a position on (`bare`: without data). Blocks; a file that cannot be read counts as empty."""
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
