"""The page of a job's events: newest first, filtered by words, in pages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from trainmaster.web.contract import Facts
from trainmaster.web.pages.render import render
from trainmaster.words.events import event_text

PAGE = 200  # events
SPAN = 20_000  # events that one page looks through
BREATH = 500  # events after which others run: those in memory come without a wait


async def events_page(facts: Facts, values: Mapping[str, Any], text: str, before: int) -> str:
    """Return the page with the newest events before number `before` (0: of all) that have all words of `text`.

    At most `SPAN` events are looked through; the page has a link that goes on from there.
    """
    last = int(facts.shown_status()["events"])
    end = before or last + 1
    begin = max(0, end - 1 - (SPAN if text else PAGE))
    rows: deque[tuple[Mapping[str, Any], str]] = deque(maxlen=PAGE)
    async for event in facts.events(begin, False):
        if event["n"] >= end:
            break
        if event["n"] % BREATH == 0:
            await asyncio.sleep(0)
        words = event_text(event)
        if all(word in f"{event['type']} {words}".lower() for word in text.lower().split()):
            rows.append((event, words))
    first = rows[0][0]["n"] if len(rows) == PAGE else begin + 1
    return render(
        "events.html", **values, rows=list(reversed(rows)), text=text, earlier=first if first > 1 else 0, last=last
    )
