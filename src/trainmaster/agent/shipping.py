"""Logs on their way to a storage that is not this machine's disk: in pieces, each `EVERY` seconds or `PIECE` bytes.

    logs/<role>-<index>/<attempt>.log           the whole, put once the attempt is over, where it is not larger than `WHOLE`
    logs/<role>-<index>/<attempt>.log.d/<n>     its pieces in order, until then, and for ever where it is larger

The spool is what the program is printed into; a store that is slow or dead only makes the spool longer, which is bounded by itself. What
the spool left out before it could be shipped is left out here too, with its mark.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

from trainmaster.agent.failure import words
from trainmaster.agent.follow import Follower
from trainmaster.agent.spool import MIB, Spool

EVERY = 5.0  # s
PIECE = 4 * MIB
WHOLE = 32 * MIB
LOOK = 0.5  # s

log = logging.getLogger(__name__)


class _Log:
    """One attempt's log and how far it has been shipped."""

    def __init__(self, spool: Spool, attempt: int, name: str) -> None:
        self.spool, self.name = spool, name
        self.at = Follower(attempt, attempt, 0)
        self.pieces = 0
        self.shipped_at = 0.0
        self.whole = False
        spool.movers.append(self._moved)

    def _moved(self, after: int, by: int) -> None:
        if self.at.offset > after - by:
            self.at.offset = max(after - by, self.at.offset - by)


class Shipping:
    """Ships the logs of one task. `storage` is a `log.storage.Storage`, made in the thread that uses it first."""

    def __init__(self, storage: Callable[[], Any], task: str, every: float = EVERY, piece: int = PIECE) -> None:
        self._every, self._piece = every, piece
        self._open = storage
        self._storage: Any = None
        self._folder = f"logs/{task.replace(':', '-')}"
        self._logs: list[_Log] = []
        self._busy = asyncio.Lock()
        self.trouble = ""

    def follow(self, spool: Spool, attempt: int) -> None:
        self._logs.append(_Log(spool, attempt, f"{self._folder}/{attempt}.log"))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            now = asyncio.get_running_loop().time()
            for one in self._logs:
                waiting = one.spool.size - one.at.offset
                if waiting >= self._piece or (waiting > 0 and now - one.shipped_at >= self._every):
                    one.shipped_at = now
                    await self._ship(one)

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
            return f"the log could not be stored within {within:.0f} s: {self.trouble or 'the storage is slow'}"
        return ""

    async def _ship(self, one: _Log, last: bool = False) -> None:
        async with self._busy:
            try:
                await asyncio.to_thread(self._ship_blocking, one, last)
                self.trouble = ""
            except Exception as error:  # noqa: BLE001  whatever a storage raises: the spool keeps it, and it is tried again
                self.trouble = words(error)
                log.warning("a piece of %s could not be stored: %s", one.name, self.trouble)

    def _ship_blocking(self, one: _Log, last: bool) -> None:
        if self._storage is None:
            self._storage = self._open()
        while data := self._read(one):
            self._storage.replace(f"{one.name}.d/{one.pieces:08}", data)
            one.pieces += 1
            with one.spool.lock:
                one.at.offset += len(data)
            if not last and one.spool.size - one.at.offset < self._piece:
                return
        if last:
            self._put_together(one)
            one.whole = True

    def _read(self, one: _Log) -> bytes:
        try:
            with one.spool.lock, open(one.spool.path, "rb", buffering=0) as file:
                file.seek(one.at.offset)
                return file.read(self._piece) or b""
        except FileNotFoundError:
            return b""

    def _put_together(self, one: _Log) -> None:
        if not os.path.exists(one.spool.path) or os.path.getsize(one.spool.path) > WHOLE:
            return
        with open(one.spool.path, "rb") as file:
            self._storage.replace(one.name, file.read())
        for number in range(one.pieces):
            self._storage.remove(f"{one.name}.d/{number:08}")
