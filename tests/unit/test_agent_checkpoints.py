"""Storing a checkpoint path behind training: whatever set the master may name for a restore is there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from waiting import until_async

from trainmaster.agent.checkpointing import Checkpointing
from trainmaster.data.checkpoints import restore, sets


class Master:
    """Hears of sets, and acknowledges them while it is there."""

    def __init__(self) -> None:
        self.there = asyncio.Event()
        self.told: list[Any] = []

    def report(self, kind: str, **fields: Any) -> None:
        self.told.append((kind, fields.get("set") or fields.get("detail")))

    async def acknowledged(self) -> None:
        await self.there.wait()


def test_a_set_is_kept_until_the_master_knows_a_newer_one(tmp_path: Path) -> None:
    url = f"{tmp_path}/stored"

    def numbers() -> list[int]:
        return [found.number for found in sets(url)]

    async def act() -> None:
        master = Master()
        storing = Checkpointing(
            {"url": url, "path": "ckpt", "every": 60, "keep": 1}, f"{tmp_path}", "worker:0", 1, lambda: None, list,
            master.report, master.acknowledged,
        )  # fmt: skip
        await storing.begin()
        master.there.set()
        for step in range(1, 3):
            (tmp_path / "ckpt").write_text("x" * step)
            await storing.last(True)
            await until_async(lambda step=step: numbers() == [step])  # type: ignore[misc]
        master.there.clear()
        for step in range(3, 6):
            (tmp_path / "ckpt").write_text("x" * step)
            await storing.last(True)
        assert numbers() == [2, 3, 4, 5], "the master, cut off, will name set 2"
        await asyncio.to_thread(restore, url, f"{tmp_path}/ckpt", 2)
        assert (tmp_path / "ckpt").read_text() == "xx"
        master.there.set()
        await until_async(lambda: numbers() == [5])
        assert master.told == [("checkpoint", number) for number in range(1, 6)]

    asyncio.run(act())
