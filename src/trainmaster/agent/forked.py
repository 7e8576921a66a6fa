"""The agent as a template forks it: all that an agent imports on its way is there before, once for all of them."""

from __future__ import annotations

import websockets.asyncio.client  # noqa: F401

import trainmaster.agent.watch.watching
import trainmaster.host.limits
import trainmaster.host.ports  # noqa: F401
from trainmaster.agent.main import run

__all__ = ["run"]
