"""The list of jobs that `tm ui` keeps current: what goes wrong while it is read is said in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from trainmaster.client.ui.board import Board


def test_a_fault_of_ours_is_said_in_the_list_and_tried_again_at_ease(caplog: pytest.LogCaptureFixture) -> None:
    looks = 0

    def open_place() -> Any:
        nonlocal looks
        looks += 1
        raise KeyError("no such thing")

    async def act() -> None:
        board = Board(open_place, local=True)
        assert list(await board.present()) == []
        assert board.trouble == "this is a fault of trainmaster: KeyError('no such thing')"
        assert await board.changed(2, within=0.01) == 2

    asyncio.run(asyncio.wait_for(act(), 60))
    assert looks == 1
    assert "Traceback" in caplog.text
