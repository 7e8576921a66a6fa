"""Shards between the programs' pools (`leases`) and the master, over the agent's channel.

What is done travels as a numbered report and counts once that is acknowledged; an ask for more is a message of its own, answered by one.
A master answers each ask, or its connection is lost, which pings notice. There is no other limit of time: shards in an answer that nobody
waits for any more would be held by nobody. On every new channel the hello says what the attempt holds of each input (`holds`), and the
welcome what of it is not its own (`drop`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.agent.link.channel import Channel


class Leasing:
    """Implements `leases.Lease` as `lease`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self.attempt = 0
        self.on_done: Callable[[], None] = lambda: None

    async def lease(self, name: str, want: int, done: dict[str, Any], back: list[list[int]]) -> Mapping[str, Any]:
        """Ask the master for shards, once what is done is durable. Raises OSError while the master is away."""
        attempt = self.attempt
        if done:
            self._channel.report("shards-done", attempt, input=name, **done)
            await self._channel.outbox.acknowledged()
            self.on_done()
        if not want and not back:
            return {"shards": [], "files": []}
        return await self.ask({"attempt": attempt, "input": name, "want": want, **({"back": back} if back else {})})

    async def ask(self, message: dict[str, Any]) -> Mapping[str, Any]:
        """One ask, one answer. Raises OSError where there is none."""
        if not self._channel.connected:
            raise ConnectionError("the master is away")
        number = next(self._ids)
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._channel.ask({"type": "lease", "id": number, **message})
        try:
            return await answer
        finally:
            del self._asked[number]

    def answered(self, message: Mapping[str, Any]) -> None:
        answer = self._asked.get(message.get("id", 0))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def disconnected(self) -> None:
        """Nothing that was asked will be answered."""
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the master is away"))
