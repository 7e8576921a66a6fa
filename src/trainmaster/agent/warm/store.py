"""Hold a program that starts warm back until the first one serves the store at which all of its generation meet.

Programs that start warm are there within some 20 ms of each other, in any order. PyTorch's client of a store that nobody serves yet waits
0.5 to 1 s before it asks again (c10d's socket.cpp; seen of torch 2.15), which is longer than all else of a restart. So the first program
gets a lead: until it listens, where that can be seen on this machine; `LEAD` at most, since it may have other things to do before.
"""

from __future__ import annotations

import asyncio

from trainmaster.host.ports import is_listening

LEAD = 0.1  # s
LOOK_EVERY = 0.003  # s


async def wait_for_store(store: str, address: str) -> None:
    """Wait until the first program listens at `store` (host:port), or for the lead. `address`: that of this container."""
    host, _, port = store.rpartition(":")
    is_here = host.strip("[]") == address
    loop = asyncio.get_running_loop()
    end = loop.time() + LEAD
    while loop.time() < end and not (is_here and is_listening(int(port))):  # noqa: ASYNC110  nobody tells
        await asyncio.sleep(LOOK_EVERY)
