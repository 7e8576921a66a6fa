"""Storing a checkpoint path behind training: whatever set the master may name for a restore is there."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_sets import sets
from waiting import until_async

from trainmaster.agent.attempt import checkpointing
from trainmaster.agent.attempt.checkpointing import Checkpointing
from trainmaster.data import watch
from trainmaster.data.checkpoints import restore


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


def test_what_a_program_has_begun_to_write_is_no_set_until_it_says_so(tmp_path: Path) -> None:
    looks = 0

    def pids() -> list[int]:
        nonlocal looks
        looks += 1
        return []

    async def act() -> None:
        master = Master()
        master.there.set()
        storing = Checkpointing(
            {"url": f"{tmp_path}/stored", "path": "ckpt", "every": 0.05, "keep": 2}, f"{tmp_path}", "worker:0", 1, lambda: None, pids,
            master.report, master.acknowledged,
        )  # fmt: skip
        await storing.begin()
        storing.note_state("begin", "m1")
        (tmp_path / "ckpt").write_text("half")
        await storing.last(True)
        assert master.told == [], "the program raised an error within its checkpoint"
        running = asyncio.create_task(storing.run())
        try:
            await until_async(lambda: looks > 1.5 * watch.SETTLE / 0.05)
            assert master.told == [], "it was still for long enough"
            storing.note_state("failed", "m1")
            storing.note_state("begin", "m2")
            (tmp_path / "ckpt").write_text("whole")
            storing.note_state("saved", "m2")
            await until_async(lambda: master.told == [("checkpoint", 1)])
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        assert sets(f"{tmp_path}/stored")[0].marks == "m2"

    asyncio.run(act())


def stored_behind(tmp_path: Path, busy: Callable[[], None], done: Callable[[Master], bool]) -> Master:
    """Store what a program that is busy whenever it is looked at makes, until that is done."""
    master = Master()
    master.there.set()

    def pids() -> list[int]:
        busy()
        return []

    async def act() -> None:
        storing = Checkpointing(
            {"url": f"{tmp_path}/stored", "path": "ckpt", "every": 0.05, "keep": 2}, f"{tmp_path}", "worker:0", 1, lambda: None, pids,
            master.report, master.acknowledged,
        )  # fmt: skip
        await storing.begin()
        running = asyncio.create_task(storing.run())
        try:
            await until_async(lambda: done(master))
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    asyncio.run(act())
    return master


def test_a_checkpoint_that_is_never_still_is_stored_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "PATIENCE", 0.0)
    count = 0

    def renew() -> None:
        nonlocal count
        count += 1
        (tmp_path / "draft").write_text(f"{count}")
        (tmp_path / "draft").rename(tmp_path / "ckpt")

    told = stored_behind(tmp_path, renew, lambda master: ("checkpoint", 3) in master.told).told
    assert [what for what, _ in told][:3] == ["checkpoint"] * 3


def test_why_there_is_no_set_for_long_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "PATIENCE", 0.0)
    looks = 0

    def write() -> None:
        nonlocal looks
        looks += 1
        with (tmp_path / "ckpt").open("a") as file:
            file.write("x")

    told = stored_behind(tmp_path, write, lambda master: bool(master.told) and looks > 10).told
    assert len(told) == 1
    assert "is never still for 1 s" in told[0][1]


def test_a_checkpoint_of_links_alone_names_them_at_its_end(tmp_path: Path) -> None:
    async def act() -> None:
        master = Master()
        storing = Checkpointing(
            {"url": f"{tmp_path}/stored", "path": "ckpt", "every": 60, "keep": 2}, f"{tmp_path}", "worker:0", 1, lambda: None, list,
            master.report, master.acknowledged,
        )  # fmt: skip
        await storing.begin()
        (tmp_path / "ckpt").mkdir()
        (tmp_path / "ckpt/passwd").symlink_to("/etc/passwd")
        await storing.last(True)
        words = "it holds nothing that can be stored: passwd (a link that leads out of the working directory)"
        assert master.told == [("warned", words)]

    asyncio.run(act())


def test_a_link_that_comes_after_the_last_change_is_named_at_the_end(tmp_path: Path) -> None:
    async def act() -> None:
        master = Master()
        storing = Checkpointing(
            {"url": f"{tmp_path}/stored", "path": "ckpt", "every": 60, "keep": 2}, f"{tmp_path}", "worker:0", 1, lambda: None, list,
            master.report, master.acknowledged,
        )  # fmt: skip
        await storing.begin()
        (tmp_path / "ckpt").mkdir()
        (tmp_path / "ckpt/model").write_text("1")
        await storing.last(True)
        os.mkfifo(tmp_path / "ckpt/pipe")
        await storing.last(True)
        assert master.told == [("checkpoint", 1), ("warned", "not stored: pipe (a named pipe)")]

    asyncio.run(act())
