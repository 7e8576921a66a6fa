"""Own the rings of an attempt's feeds (`data.feed`), and tell the master of them.

The master hears two things. A *word* (`feeds`) says how a ring is: it is absolute, so one that is lost or comes twice changes nothing, and
it goes out some milliseconds after a change. A numbered report (`feed-read`) says which batches were fed and read: it gets onto the log,
and comes before the report of the attempt's end. Back come the rows that each reader may have, and whether these are the last.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.core.input.feed_tokens import is_of_feed, named_feed

if TYPE_CHECKING:
    from trainmaster.data.feed.owner import Owner
    from trainmaster.data.feed.streams import Streams

WORD_AFTER = 0.01  # s after a change
REPORT_AFTER = 0.3  # s

log = logging.getLogger(__name__)


class Outside(NamedTuple):
    """How feeders of other hosts come: they have tokens of feeds, signed with the job's, and trust its certificate (PEM)."""

    token: str
    certificate: str
    key: str


class Feeds:
    """The feeds of this container's present attempt, of `task`. `folder`: of the sockets, whose paths must be short.

    `outside`: how feeders of other hosts come; None: the job is on one machine.
    """

    def __init__(
        self,
        folder: str,
        send: Callable[[dict[str, Any]], None],
        report: Callable[..., None],
        task: str,
        outside: Outside | None = None,
    ) -> None:
        self._folder, self._send, self._report = folder, send, report
        self._task, self._outside = task, outside
        self._owners: dict[str, Owner] = {}
        self._roles: dict[str, str] = {}  # feed -> whose it is
        self._streams: Streams | None = None
        self._address = ""  # of the streams
        self._attempt = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def open(self, attempt: int, feeds: Mapping[str, tuple[int, str]], address: str = "") -> dict[str, str]:
        """Make a ring for each feed; return the variables that lead a program to them. Raises EngineFailed.

        `feeds`: name -> bytes, and the role whose feed it is: others share it. `address`: of this host, for streams.
        """
        if not feeds:
            return {}
        from trainmaster.agent.attempt.workplace import variable
        from trainmaster.data.feed.owner import SUFFIX, Owner, sweep

        self._attempt = attempt
        sweep(Path(self._folder))
        self._roles = {name: role for name, (_, role) in feeds.items()}
        for number, (name, (size, _)) in enumerate(feeds.items()):
            owner = Owner(Path(self._folder, f"{os.getpid():x}.{attempt}.{number}{SUFFIX}"), size)
            await asyncio.to_thread(owner.allocate)  # which writes to every page
            self._owners[name] = owner
            owner.open()
            owner.has_changed = self._note_change
        if self._outside is not None:
            await self._listen(self._outside, address)
        self.tell()
        return {f"TRAINMASTER_FEED_{variable(name)}": str(owner.path) for name, owner in self._owners.items()}

    def tell(self, *, anew: bool = False) -> None:
        """Tell the master how the rings are. `anew`: it may be another master, or one that was away."""
        self._forget_timer("word")
        if self._owners:
            words = {name: _word(owner, self._address) for name, owner in self._owners.items()}
            self._send({"type": "feeds", "attempt": self._attempt, "feeds": words, **({"anew": True} if anew else {})})

    def answered(self, message: Mapping[str, Any]) -> None:
        """Take in how far readers may read."""
        if message["attempt"] != self._attempt:
            return
        for name, (limit, has_ended) in message["limits"].items():
            if (owner := self._owners.get(name)) is not None:
                if has_ended:
                    owner.ring.end()
                owner.ring.permit(limit)
                owner.settle()

    def close(self) -> None:
        """End the rings: the program has ended. Report the rows that it read; the others go to other programs."""
        for owner in self._owners.values():
            owner.has_changed = lambda: None
            owner.drain()
        self._report_read(is_last=True)
        self._forget_timer("word")
        if self._streams is not None:
            self._streams.close()
        for owner in self._owners.values():
            owner.close()
        self._owners.clear()

    # -- inside --

    async def _listen(self, outside: Outside, address: str) -> None:
        """Serve feeders of other hosts. Where that cannot be, those of this one are served, and the others hear it."""
        from trainmaster.data.feed.streams import Streams
        from trainmaster.runtime.network.pinned import serving

        self._streams = Streams(
            (self._task, self._attempt), self._owners,
            lambda token, name: named_feed(token) == (self._roles.get(name), name) and is_of_feed(token, outside.token),
        )  # fmt: skip
        try:
            self._address = await self._streams.open(address, serving(outside.certificate, outside.key))
        except OSError as error:
            self._address = ""
            log.warning("feeders of other hosts are not served at %s: %s", address, error)

    def _note_change(self) -> None:
        loop = asyncio.get_running_loop()
        if "word" not in self._timers:
            self._timers["word"] = loop.call_later(WORD_AFTER, self.tell)
        if "report" not in self._timers:
            self._timers["report"] = loop.call_later(REPORT_AFTER, self._report_read)

    def _report_read(self, *, is_last: bool = False) -> None:
        self._forget_timer("report")
        for name, owner in self._owners.items():
            ring = owner.ring
            fed, read = ring.take_news()
            left = {"left": ring.left_over} if is_last and ring.left_over else {}
            if fed or read or left:
                self._report("feed-read", self._attempt, feed=name, fed=fed, read=read, rows=ring.delivered, **left)

    def _forget_timer(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()


def _word(owner: Owner, address: str) -> dict[str, Any]:
    from trainmaster.runtime.feed.stream import machine

    ring = owner.ring
    return {
        "host": machine(), "socket": str(owner.path), "address": address, "supply": ring.supply, "delivered": ring.delivered,
        "room": ring.room, "largest": ring.largest, "stopped": ring.has_stopped,
    }  # fmt: skip
