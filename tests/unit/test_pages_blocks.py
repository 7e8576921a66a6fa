"""Open pages: what changed is sent once to each, and made once for all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from trainmaster.core.errors import StorageFailed
from trainmaster.web.pages.blocks import View, Views


class Counter:
    """Facts that change when they are told to; `made` counts how often blocks were made of them."""

    def __init__(self) -> None:
        self.blocks: Mapping[str, str | tuple[str, str]] = {"head": "<p id=head>0</p>", "rest": "<p id=rest>same</p>"}
        self.made = 0
        self.version = 1
        self._news = asyncio.Condition()
        self.failure: Exception | None = None

    async def make(self) -> Mapping[str, str | tuple[str, str]]:
        self.made += 1
        if self.failure is not None:
            raise self.failure
        return self.blocks

    async def change(self, **blocks: str | tuple[str, str]) -> None:
        self.blocks = {**self.blocks, **blocks}
        self.version += 1
        async with self._news:
            self._news.notify_all()

    async def changed(self, version: int, within: float) -> int:
        async with self._news:
            await self._news.wait_for(lambda: self.version > version)
        return self.version


def view(facts: Any) -> View:
    return View(facts, facts.make)


def run(act: Any) -> Any:
    return asyncio.run(asyncio.wait_for(act, 60))


def test_a_page_opens_with_all_blocks_and_then_gets_those_that_changed() -> None:
    async def act() -> None:
        facts = Counter()
        seen = view(facts)
        version, blocks = await seen.now()
        assert list(blocks) == ["head", "rest"]
        waiting = asyncio.create_task(seen.since(version))
        await facts.change(head="<p id=head>1</p>")
        newer, changed = await waiting
        assert newer > version
        assert changed == ["<p id=head>1</p>"]

    run(act())


def test_fifty_pages_cost_one_making() -> None:
    async def act() -> None:
        facts = Counter()
        seen = view(facts)
        version, _ = await seen.now()
        pages = [asyncio.create_task(seen.since(version)) for _ in range(50)]
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(10)))  # noqa: TID251  all wait now
        await facts.change(head="<p id=head>1</p>")
        answers = await asyncio.gather(*pages)
        assert all(changed == ["<p id=head>1</p>"] for _, changed in answers)
        assert facts.made <= 3

    run(act())


def test_pages_that_poll_share_one_making_and_keep_their_views() -> None:
    async def act() -> None:
        facts: Any = Counter()
        views = Views(facts)
        first = views.view("job one", facts.make)
        version, _ = await first.changes(0)
        second = views.view("job two", facts.make)
        await second.changes(0)
        assert views.view("job one", facts.make) is first
        made = facts.made
        for _ in range(50):
            assert await first.changes(version) == (version, [])
        assert facts.made <= made + 2, "each view's own"
        await facts.change(head="<p id=head>1</p>")
        await first.since(version)
        assert (await first.changes(version))[1] == ["<p id=head>1</p>"]

    run(act())


def test_a_block_that_holds_others_is_sent_only_where_its_identity_changed() -> None:
    async def act() -> None:
        facts = Counter()
        facts.blocks = {"row": "<tr id=row>0</tr>", "table": ("row", "<table id=table>0</table>")}
        seen = view(facts)
        version, _ = await seen.now()
        await facts.change(row="<tr id=row>1</tr>", table=("row", "<table id=table>1</table>"))
        version, changed = await seen.since(version)
        assert changed == ["<tr id=row>1</tr>"]
        assert (await seen.now())[1]["table"] == "<table id=table>1</table>", "a page that opens has the new row"
        await facts.change(table=("row other", "<table id=table>2</table>"))
        assert (await seen.since(version))[1] == ["<table id=table>2</table>"]

    run(act())


def test_a_page_of_an_earlier_server_gets_all_blocks() -> None:
    async def act() -> None:
        facts = Counter()
        earlier = View(facts, facts.make, wall=lambda: 1000.0)  # type: ignore[arg-type]
        version, _ = await earlier.now()
        later = View(facts, facts.make, wall=lambda: 1001.0)  # type: ignore[arg-type]
        _, changed = await later.since(version)
        assert len(changed) == 2

    run(act())


def test_what_keeps_the_blocks_from_being_made_is_reported_and_tried_again() -> None:
    async def act() -> None:
        facts = Counter()
        seen = view(facts)
        version, _ = await seen.now()
        facts.failure = StorageFailed("the disk is away", place="/data", mend="bring it back", anchor="storage-failed")
        with pytest.raises(StorageFailed):
            await seen.since(version)
        facts.failure = None
        facts.blocks = {"head": "<p id=head>back</p>"}
        assert (await seen.since(version))[1] == ["<p id=head>back</p>"]

    run(act())


def test_views_that_nobody_looks_at_are_forgotten() -> None:
    async def act() -> None:
        facts: Any = Counter()
        views = Views(facts)
        first = views.view("job one", facts.make)
        await first.now()
        views.view("job two", facts.make)
        assert views.view("job one", facts.make) is not first

    run(act())
