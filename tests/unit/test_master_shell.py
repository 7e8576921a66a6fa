"""The master's shell: whoever hears nothing of its engine any more ends, and leaves the job to a successor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from trainmaster.core.drive import Drive
from trainmaster.core.state import State
from trainmaster.engines.contract import Change
from trainmaster.master.shell import Shell


class Broken:
    """An engine that fails as soon as it is listened to."""

    async def changes(self) -> AsyncIterator[Change]:
        raise OSError("the engine is gone")
        yield


def test_a_master_ends_when_its_engine_fails() -> None:
    nothing: Any = None

    async def scene() -> None:
        engine: Any = Broken()
        shell = Shell(Drive(State()), 1, nothing, engine, nothing, nothing, nothing, lambda: 0.0, lambda: True, nothing)
        await asyncio.wait_for(shell.run(), 60)

    with pytest.raises(OSError, match="the engine is gone"):
        asyncio.run(scene())
