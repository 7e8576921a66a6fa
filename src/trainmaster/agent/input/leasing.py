"""Carry shards between the programs' pools (`leases`) and the master, over the agent's channel.

Done shards travel in a numbered report, and count once that is acknowledged. A request for more is a message of its own, with one answer.
The master answers each request, or its connection is lost, which pings notice. There is no other time limit: nobody would hold the shards
of an answer that nobody waits for any more. On every new channel the hello lists the shards that the attempt holds of each input
(`holds`), and the welcome those of them that are not its own (`drop`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.agent.link.channel import Channel


class Leasing:
    """Leases of one agent. `lease` implements `leases.Lease`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self.attempt = 0
        self.on_done: Callable[[], None] = lambda: None

    async def lease(self, name: str, want: int, done: dict[str, Any], back: list[list[int]]) -> Mapping[str, Any]:
        """Ask the master for shards, once the done ones are durable. Raises OSError while the master is away."""
        attempt = self.attempt
        if done:
            self._channel.report("shards-done", attempt, input=name, **done)
            await self._channel.outbox.acknowledged()
            self.on_done()
        if not want and not back:
            return {"shards": [], "files": []}
        return await self.ask({"attempt": attempt, "input": name, "want": want, **({"back": back} if back else {})})

    async def ask(self, message: dict[str, Any]) -> Mapping[str, Any]:
        """Send one request and return its answer. Raises OSError where there is none."""
        if not self._channel.connected:
            raise ConnectionError("the master is away")
        number = next(self._ids)
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._channel.ask({"type": "lease", "id": number, **message})
        try:
            return await answer
        finally:
            del self._answers[number]

    def answered(self, message: Mapping[str, Any]) -> None:
        answer = self._answers.get(message.get("id", 0))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def disconnected(self) -> None:
        """Fail all open requests: none of them will be answered."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the master is away"))
