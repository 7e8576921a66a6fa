"""Ship logs to a storage whose files do not grow: in pieces, each `EVERY` seconds or `PIECE` bytes (see `log.output`).

    logs/<role>-<index>/<attempt>.log.d/<position>   until the attempt is over, and for ever where the log is larger than `WHOLE`
    logs/<role>-<index>/<attempt>.log                the whole, put once the agent leaves

The spool takes the program's output. A store that is slow or dead only makes the spool longer, and the spool bounds itself. Stored pieces
that the spool has since left out are removed, so the storage is bounded in the same way. A short piece is put again, longer: a program that
prints a little for a month makes few objects. A spool is removed once all of it is stored.
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
        self.pieces: list[tuple[int, int]] = []  # position and size of each stored piece
        self.shipped_at = 0.0
        self.whole = False  # all of it is stored

    def read(self, size: int, longer: bool = True) -> tuple[int, bytes, Gap]:
        """Return the begin of the next bytes to store, the bytes, and the gap in the spool by now. `longer`: a short piece is put again."""
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
            for attempt_log in self._logs:
                waiting = attempt_log.spool.printed - attempt_log.at
                if waiting >= self._piece or (waiting > 0 and now - attempt_log.shipped_at >= self._every):
                    attempt_log.shipped_at = now
                    await self._ship(attempt_log)

    async def hurry(self) -> None:
        """Ship the present output in the fastest way: the engine may end us in a moment."""
        for attempt_log in self._logs:
            if attempt_log.spool.printed > attempt_log.at:
                await self._guarded(attempt_log, self._hurry_blocking, attempt_log)

    async def finish(self, within: float) -> str:
        """Ship the rest and put the logs together. Return "", or a sentence about the logs that were given up."""
        try:
            async with asyncio.timeout(within):
                for attempt_log in self._logs:
                    while not attempt_log.whole:
                        await self._ship(attempt_log, last=True)
                        if self.trouble:
                            await asyncio.sleep(LOOK)
        except TimeoutError:
            paths = ", ".join(attempt_log.spool.path for attempt_log in self._logs if not attempt_log.whole)
            reason = self.trouble or "the storage is slow"
            return f"the log could not be stored within {within:.0f} s: {reason}; it is in {paths}"
        return ""

    def clear(self) -> None:
        """Remove the spools that are stored: nobody reads them here any more."""
        for attempt_log in self._logs:
            if attempt_log.whole:
                with contextlib.suppress(OSError):
                    os.unlink(attempt_log.spool.path)

    async def _ship(self, attempt_log: _Log, last: bool = False) -> None:
        await self._guarded(attempt_log, self._ship_blocking, attempt_log, last)

    async def _guarded(self, attempt_log: _Log, act: Callable[..., None], *arguments: Any) -> None:
        async with self._busy:
            try:
                await asyncio.to_thread(act, *arguments)
                self.trouble = ""
            except Exception as error:  # noqa: BLE001  any error of a storage: the spool keeps the log, and the next try comes
                self.trouble = words(error)
                log.warning("a piece of %s could not be stored: %s", attempt_log.name, self.trouble)

    def _hurry_blocking(self, attempt_log: _Log) -> None:
        if self._storage is None:
            self._storage = self._open()
        if not self._storage.appends:
            self._ship_blocking(attempt_log, last=False)
            return
        begin, data, _ = attempt_log.read(self._piece, longer=False)
        if not data:
            return
        file = self._storage.appender(piece_name(attempt_log.name, begin))
        try:
            file.write(data)
            file.sync()  # from now on it is readable, though we die: on HDFS 20 ms after the beginning, where a close takes 500
            attempt_log.pieces.append((begin, len(data)))
            attempt_log.at = begin + len(data)
        finally:
            file.close()

    def _ship_blocking(self, attempt_log: _Log, last: bool) -> None:
        if self._storage is None:
            self._storage = self._open()
        while True:
            begin, data, gap = attempt_log.read(self._piece)
            if begin + len(data) <= attempt_log.at:
                break
            self._storage.replace(piece_name(attempt_log.name, begin), data)
            if attempt_log.pieces and attempt_log.pieces[-1][0] == begin:
                del attempt_log.pieces[-1]
            attempt_log.pieces.append((begin, len(data)))
            attempt_log.at = begin + len(data)
            if not last and attempt_log.spool.printed - attempt_log.at < self._piece:
                break
        self._remove_left_out(attempt_log, gap)
        if last:
            self._put_together(attempt_log)
            attempt_log.whole = True

    def _remove_left_out(self, attempt_log: _Log, gap: Gap) -> None:
        for piece in [
            (begin, size)
            for begin, size in attempt_log.pieces
            if gap.begin <= begin and begin + size <= gap.begin + gap.size
        ]:
            self._storage.remove(piece_name(attempt_log.name, piece[0]))
            attempt_log.pieces.remove(piece)

    def _put_together(self, attempt_log: _Log) -> None:
        if not os.path.exists(attempt_log.spool.path) or os.path.getsize(attempt_log.spool.path) > WHOLE:
            return
        with open(attempt_log.spool.path, "rb") as file:
            self._storage.replace(attempt_log.name, file.read())
        for begin, _ in attempt_log.pieces:
            self._storage.remove(piece_name(attempt_log.name, begin))
