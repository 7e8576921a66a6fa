"""The agent that a template forks. Everything an agent imports later is imported here, once for all agents."""

from __future__ import annotations

import websockets.asyncio.client  # noqa: F401

import trainmaster.agent.watch.watching
import trainmaster.host.machine
import trainmaster.host.ports  # noqa: F401
from trainmaster.agent.main import run

__all__ = ["run"]
