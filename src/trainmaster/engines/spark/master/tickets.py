"""Hand each container its secrets, which Spark would send to executors as clear text.

Spark's task has a ticket, a random number that is worth the secrets of one container once. Its agent brings the ticket to the master over
TLS, under the job's certificate, before it does anything else. A ticket that somebody reads on the network later is worth nothing. Somebody
who is faster than the agent is noticed, for the agent's ticket is then refused and its container ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from trainmaster.core.machine.stimuli import Key
from trainmaster.host.linux import descriptor_limit
from trainmaster.runtime.network.door import Crowd, Door, Stranger, streamed
from trainmaster.runtime.network.listeners import TICKETS
from trainmaster.runtime.network.pinned import serving

WITHIN = 20.0  # s that a connection may take
log = logging.getLogger(__name__)


class Tickets:
    """The tickets of one master. `host`: under which executors reach it."""

    def __init__(self, host: str, certificate: str, key: str) -> None:
        self._host, self._certificate, self._key = host, certificate, key
        self._secrets: dict[str, tuple[Key, Mapping[str, Any]]] = {}  # ticket -> whose it is, and the secrets
        self._crowd = Crowd(descriptor_limit(), trusted_within=WITHIN)  # nobody stays: an answer is the end
        self._door: Door | None = None
        self._address: list[Any] = []

    async def open(self) -> None:
        """Listen, on a port that the kernel chooses."""
        bound = TICKETS.at_address()
        self._door = Door(bound, self._crowd, streamed(self._serve), serving(self._certificate, self._key))
        self._address = [self._host, bound.getsockname()[1]]

    def ticket(self, container: Key, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a container needs to fetch these secrets."""
        number = secrets.token_urlsafe(32)
        self._secrets[number] = container, values
        return {"address": self._address, "number": number, "within": WITHIN}

    def withdraw(self, container: Key) -> None:
        """Make the ticket of a container that is gone, or never came, worth nothing."""
        self._secrets = {number: entry for number, entry in self._secrets.items() if entry[0] != container}

    async def _serve(self, stranger: Stranger, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            number = (await reader.readline()).decode(errors="replace").strip()
            container, values = self._secrets.pop(number, (("", 0), None))
            if values is None:
                peer = writer.get_extra_info("peername")
                log.warning("a ticket was refused that is unknown, or was brought before: %s", peer)
            else:
                log.info("%s has its secrets", container[0])
            writer.write(json.dumps(values).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError):
            pass  # the container's side tells
        finally:
            writer.close()

    async def close(self) -> None:
        if self._door is not None:
            self._door.close()
            await self._door.closed()
        self._crowd.close()
