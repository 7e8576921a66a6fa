"""How a master ends: when it hears nothing of its engine any more, and on a disk that is still full."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.core.drive import Drive
from trainmaster.core.errors import StorageFailed
from trainmaster.core.state import State
from trainmaster.engines.contract import Change
from trainmaster.engines.local import places
from trainmaster.master.main import _Life
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
        shell = Shell(Drive(State()), 1, nothing, engine, nothing, nothing, nothing, lambda: 0.0, nothing)
        await asyncio.wait_for(shell.run(), 60)

    with pytest.raises(OSError, match="the engine is gone"):
        asyncio.run(scene())


@pytest.mark.parametrize("over", [True, False])
def test_the_sockets_of_a_job_that_is_over_go_though_its_log_cannot_be_closed(over: bool) -> None:
    async def close() -> None:
        raise StorageFailed("no space left on device")

    life = object.__new__(_Life)
    life.job_id, life.shell = "t-aaaaaa", SimpleNamespace(over=over)
    life.record = SimpleNamespace(close=close)
    folder = places.job_dir(life.job_id)
    with pytest.raises(StorageFailed):
        asyncio.run(life._close())
    assert folder.exists() is not over
