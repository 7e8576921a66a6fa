"""Logs on their way to a storage whose files do not grow: in pieces, each `EVERY` seconds or `PIECE` bytes (see `log.output`).

    logs/<role>-<index>/<attempt>.log.d/<position>   until the attempt is over, and for ever where the log is larger than `WHOLE`
    logs/<role>-<index>/<attempt>.log                the whole, put once the agent leaves

The spool is what the program is printed into; a store that is slow or dead only makes the spool longer, which is bounded by itself. Pieces
of what the spool has left out since are removed, so what is kept there is bounded in the same way. A short piece is put again, longer: a
program that prints a little for a month makes few objects. A spool is removed once all of it is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any

from trainmaster.agent.attempt.failure import words
from trainmaster.agent.output.spool import MIB, Spool
from trainmaster.log.output import Gap, folder, piece_name

EVERY = 5.0  # s
PIECE = 4 * MIB
SHORT = MIB // 4  # bytes
WHOLE = 32 * MIB
LOOK = 0.5  # s

log = logging.getLogger(__name__)


class _Log:
    """One attempt's log and how far it has been shipped."""

    def __init__(self, spool: Spool, name: str) -> None:
        self.spool, self.name = spool, name
        self.at = 0  # the position up to which it is stored, or left out
        self.pieces: list[tuple[int, int]] = []  # of each stored, its position and size
        self.shipped_at = 0.0
        self.whole = False  # all of it is stored

    def read(self, size: int, longer: bool = True) -> tuple[int, bytes, Gap]:
        """The next bytes to store, where they begin, and what the spool has left out by now. `longer`: a short piece is put again."""
        position = self.at
        if longer and self.pieces and self.pieces[-1][1] < min(SHORT, size):
            position = self.pieces[-1][0]
        try:
            with open(self.spool.path, "rb", buffering=0) as file:

                def read(offset: int, size: int) -> bytes:
                    return os.pread(file.fileno(), size, offset)

                gap = Gap.of(read, self.spool.head)
                return *gap.read(read, position, size), gap
        except FileNotFoundError:  # nothing was printed yet
            return position, b"", Gap()


class Shipping:
    """Ships the logs of one task. `storage` is a `log.storage.Storage`, made in the thread that uses it first."""

    def __init__(self, storage: Callable[[], Any], task: str, every: float = EVERY, piece: int = PIECE) -> None:
        self._every, self._piece = every, piece
        self._open = storage
        self._storage: Any = None
        self._folder = folder(task)
        self._logs: list[_Log] = []
        self._busy = asyncio.Lock()
        self.trouble = ""

    def follow(self, spool: Spool, attempt: int) -> None:
        self._logs.append(_Log(spool, f"{self._folder}/{attempt}.log"))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(LOOK, self._every))
            now = asyncio.get_running_loop().time()
            for one in self._logs:
                waiting = one.spool.printed - one.at
                if waiting >= self._piece or (waiting > 0 and now - one.shipped_at >= self._every):
                    one.shipped_at = now
                    await self._ship(one)

    async def hurry(self) -> None:
        """Ship what there is now, the fastest way that there is: the engine may end us in a moment."""
        for one in self._logs:
            if one.spool.printed > one.at:
                await self._guarded(one, self._hurry_blocking, one)

    async def finish(self, within: float) -> str:
        """Ship what is left and put the logs together; "" or what was given up."""
        try:
            async with asyncio.timeout(within):
                for one in self._logs:
                    while not one.whole:
                        await self._ship(one, last=True)
                        if self.trouble:
                            await asyncio.sleep(LOOK)
        except TimeoutError:
            kept = ", ".join(one.spool.path for one in self._logs if not one.whole)
            why = self.trouble or "the storage is slow"
            return f"the log could not be stored within {within:.0f} s: {why}; it is in {kept}"
        return ""

    def clear(self) -> None:
        """Remove the spools that are stored: nobody reads them here any more."""
        for one in self._logs:
            if one.whole:
                with contextlib.suppress(OSError):
                    os.unlink(one.spool.path)

    async def _ship(self, one: _Log, last: bool = False) -> None:
        await self._guarded(one, self._ship_blocking, one, last)

    async def _guarded(self, one: _Log, act: Callable[..., None], *given: Any) -> None:
        async with self._busy:
            try:
                await asyncio.to_thread(act, *given)
                self.trouble = ""
            except Exception as error:  # noqa: BLE001  whatever a storage raises: the spool keeps it, and it is tried again
                self.trouble = words(error)
                log.warning("a piece of %s could not be stored: %s", one.name, self.trouble)

    def _hurry_blocking(self, one: _Log) -> None:
        if self._storage is None:
            self._storage = self._open()
        if not self._storage.appends:
            self._ship_blocking(one, last=False)
            return
        begin, data, _ = one.read(self._piece, longer=False)
        if not data:
            return
        file = self._storage.appender(piece_name(one.name, begin))
        try:
            file.write(data)
            file.sync()  # from now on it is readable, though we die: on HDFS 20 ms after the beginning, where a close takes 500
            one.pieces.append((begin, len(data)))
            one.at = begin + len(data)
        finally:
            file.close()

    def _ship_blocking(self, one: _Log, last: bool) -> None:
        if self._storage is None:
            self._storage = self._open()
        while True:
            begin, data, gap = one.read(self._piece)
            if begin + len(data) <= one.at:
                break
            self._storage.replace(piece_name(one.name, begin), data)
            if one.pieces and one.pieces[-1][0] == begin:
                del one.pieces[-1]
            one.pieces.append((begin, len(data)))
            one.at = begin + len(data)
            if not last and one.spool.printed - one.at < self._piece:
                break
        self._remove_left_out(one, gap)
        if last:
            self._put_together(one)
            one.whole = True

    def _remove_left_out(self, one: _Log, gap: Gap) -> None:
        for found in [(at, size) for at, size in one.pieces if gap.begin <= at and at + size <= gap.begin + gap.size]:
            self._storage.remove(piece_name(one.name, found[0]))
            one.pieces.remove(found)

    def _put_together(self, one: _Log) -> None:
        if not os.path.exists(one.spool.path) or os.path.getsize(one.spool.path) > WHOLE:
            return
        with open(one.spool.path, "rb") as file:
            self._storage.replace(one.name, file.read())
        for begin, _ in one.pieces:
            self._storage.remove(piece_name(one.name, begin))
