"""Follow logs: the lines that are printed while a page is open, at most as fast as a page can show them.

A reader has a *place*: a task, an attempt and the position after the last whole line that was shown. Each piece of news moves the place
on:

- lines, and the line that has no end yet, which the next news replaces;
- a skip, where the output is far ahead: a page shows 128 KiB/s, and output beyond that is left out, with its size;
- a restart, where the task has another attempt: the place is at its beginning then;
- the end, where nothing more will come.

A stream follows several places for one reader, each at most `SHOWN` bytes every `EVERY` seconds. It keeps no more in memory than that,
and the line that is open. If the connection breaks, the browser comes back with the places that it had reached (`id`).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import attrs

from trainmaster.core.machine.report import all_tasks
from trainmaster.core.states import KILLED, OVER, PENDING
from trainmaster.log.output import MASTER, exact
from trainmaster.web.contract import Facts, Records, Unknown
from trainmaster.web.pages.logs.windows import Line, last_window, window_after

EVERY = 0.25  # s between two pieces of news of a place
SHOWN = 32 * 1024  # bytes in one piece of news
BEHIND = 512 * 1024  # bytes that a place may be behind before it skips
NEWEST = 16 * 1024  # bytes before the end that are shown after a skip
SETTLE = 0.02  # s that a piece waits for more
AGAIN = 1.0  # s until a task that prints nothing is looked at again, for a status may be a little old
QUIET = 10.0  # s after which a silent stream shows that it is there
_OPEN = 64 * 1024  # bytes kept of a line without an end


@attrs.frozen(slots=True)
class Place:
    """The place in a log where a reader stands."""

    task: str
    attempt: int
    position: int


@attrs.frozen(slots=True)
class News:
    """The lines that came after a place, and the place after them."""

    place: Place
    lines: Sequence[Line] = ()
    skipped: int = 0
    restarted: bool = False
    over: bool = False


def attempts_of(facts: Facts, task: str) -> tuple[int, bool]:
    """Return the last attempt of a task, and whether it may still print or begin another. Raises Unknown where there is no such task."""
    status = facts.shown_status()
    going = status["ended"] is None
    if task == MASTER:
        return status["epoch"], going
    for row in all_tasks(status):
        if row["task"] == task:
            return row["attempt"], going and row["state"] not in OVER
    raise Unknown(f"the job has no task {task[:80]}")


def _has_next(facts: Facts, place: Place, last: int) -> bool:
    """Tell whether the task has begun another attempt. The `last` one may never begin: the job ends, or lets the task go."""
    rows = [row for row in all_tasks(facts.shown_status()) if row["task"] == place.task]
    waits = any(row["state"] == PENDING or (row["state"] == KILLED and row["started"] is None) for row in rows)
    return last - waits > place.attempt


async def news_now(facts: Facts, place: Place) -> News:
    """Return what came after a place so far, for a reader who asks again and again."""
    last, is_going = attempts_of(facts, place.task)
    _, stored = await facts.stored(place.task, place.attempt)
    skipped = 0
    if stored - place.position > BEHIND:
        window = await last_window(facts, place.task, place.attempt, NEWEST)
        skipped = max(0, window.begin - place.position)
    else:
        window = await window_after(facts, place.task, place.attempt, place.position)
    has_next = _has_next(facts, place, last)
    if not window.lines and has_next:
        return News(Place(place.task, place.attempt + 1, 0), restarted=True)
    is_over = window.last and not is_going and not has_next
    return News(attrs.evolve(place, position=window.end), window.lines, skipped, over=is_over)


async def news_of(facts: Facts, place: Place) -> AsyncGenerator[News, None]:
    """Yield what comes after a place, as it comes, until nothing more will."""
    version = 0
    while True:
        async with aclosing(_attempt_news(facts, place)) as attempt_news:
            async for news in attempt_news:
                yield news
                place = news.place
        last, is_going = attempts_of(facts, place.task)
        if _has_next(facts, place, last):
            place = Place(place.task, place.attempt + 1, 0)
            yield News(place, restarted=True)
        elif not is_going:
            yield News(place, over=True)
            return
        else:
            version = await facts.changed(version, AGAIN)


async def stream(
    facts: Facts, places: Sequence[Place], draw: Callable[[int, News], Mapping[str, Any]]
) -> AsyncGenerator[str, None]:
    """Yield server-sent events: `log` with what `draw` makes of the news of a place. A failure ends them: the page asks why."""
    places, news_or_error = list(places), asyncio.Queue[tuple[int, News | Exception]](1)

    async def relay(number: int) -> None:
        try:
            async with aclosing(news_of(facts, places[number])) as all_news:
                async for news in all_news:
                    await news_or_error.put((number, news))
        except Exception as error:  # noqa: BLE001  whatever it is, the stream ends
            await news_or_error.put((number, error))

    relays = [asyncio.create_task(relay(number)) for number in range(len(places))]
    yield "retry: 2000\n\n"
    try:
        following = len(places)
        while following:
            try:
                async with asyncio.timeout(QUIET):
                    number, news = await news_or_error.get()
            except TimeoutError:
                yield "event: quiet\ndata:\n\n"
                continue
            if isinstance(news, Exception):
                return
            places[number] = news.place
            following -= news.over
            yield f"id: {written(places)}\nevent: log\ndata: {json.dumps(draw(number, news))}\n\n"
    finally:
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)


def written(places: Sequence[Place]) -> str:
    """Return places as text, for an address or the id of an event."""
    return " ".join(f"{place.task},{place.attempt},{place.position}" for place in places)


def places_from(text: str) -> list[Place]:
    """Read places back. Raises ValueError where they are not places."""
    matches = [re.fullmatch(r"([^,]+),(\d{1,9}),(\d{1,12})", part, re.ASCII) for part in text.split(" ")]
    places = [Place(match[1], int(match[2]), int(match[3])) for match in matches if match]
    if len(places) < len(matches):
        raise ValueError(f"these are not places in logs: {text[:80]!r}")
    return places


async def _attempt_news(facts: Facts, place: Place) -> AsyncGenerator[News, None]:
    """Yield the lines of one attempt, until it prints nothing more."""
    loop = asyncio.get_running_loop()
    growing = _Growing(place.position, place.position)
    is_behind = True
    while is_behind:
        is_behind = False
        async with aclosing(_batches(facts.log(place.task, place.attempt, growing.reached, True))) as batches:
            async for batch in batches:
                began = loop.time()
                yield growing.news(place, batch)
                await asyncio.sleep(max(0.0, EVERY - (loop.time() - began)))
                if _size(batch) < SHOWN // 2:
                    continue
                _, stored = await facts.stored(place.task, place.attempt)
                if is_behind := stored - growing.reached > BEHIND:
                    break
        if is_behind:
            growing.skip_to(stored - NEWEST)


async def _batches(pieces: Records) -> AsyncGenerator[list[_Part], None]:
    """Yield the parts of pieces as they come, those together that are there at once, up to `SHOWN` bytes."""
    parts: list[_Part] = []
    reading = asyncio.ensure_future(_next(pieces))
    try:
        while True:
            done, _ = await asyncio.wait({reading}, timeout=SETTLE if parts else None)
            piece = reading.result() if done else None
            if piece is not None:
                parts += _parts(piece)
                reading = asyncio.ensure_future(_next(pieces))
            while parts and (piece is None or _size(parts) >= SHOWN):
                count = 1
                while count < len(parts) and _size(parts[: count + 1]) <= SHOWN:
                    count += 1
                yield parts[:count]
                del parts[:count]
            if done and piece is None:
                return
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await pieces.aclose()


async def _next(pieces: Records) -> Mapping[str, Any] | None:
    return await anext(pieces, None)


@attrs.frozen(slots=True)
class _Part:
    """A part of a log: its bytes, or how many bytes are left out there."""

    begin: int
    data: bytes = b""
    left_out: int = 0


def _parts(piece: Mapping[str, Any]) -> list[_Part]:
    """Return a piece in parts that can be shown at once."""
    begin = piece["offset"]
    if "left_out" in piece:
        return [_Part(begin, left_out=piece["left_out"])]
    data = exact(piece["data"])
    return [_Part(begin + at, data[at : at + SHOWN]) for at in range(0, len(data), SHOWN)]


def _size(parts: Sequence[_Part]) -> int:
    return sum(len(part.data) for part in parts)


@attrs.define(slots=True)
class _Growing:
    """The lines of a log that grows, cut out of its pieces."""

    position: int  # where the open line begins
    reached: int  # the end of the last part
    rest: bytes = b""  # the open line, as far as it can be seen
    skipped: int = 0
    in_middle: bool = False  # after a skip: what comes before the next line is left out, too

    def skip_to(self, position: int) -> None:
        """Go on at a later position, with the next line that begins there."""
        self.skipped += position - self.position
        self.reached = self.position = position
        self.rest, self.in_middle = b"", True

    def news(self, place: Place, parts: Sequence[_Part]) -> News:
        lines: list[Line] = []
        for part in parts:
            self.reached = part.begin + len(part.data) + part.left_out
            if part.left_out:
                lines += [Line(self.position, self.rest)] if self.rest else []
                lines.append(Line(part.begin, left_out=part.left_out))
                self.position, self.rest = self.reached, b""
            else:
                lines += self._cut(part.begin, part.data)
        skipped, self.skipped = self.skipped, 0
        news = News(attrs.evolve(place, position=self.position), lines, skipped)
        if self.rest:
            lines.append(Line(self.position, self.rest, open=True))
        return news

    def _cut(self, start: int, data: bytes) -> list[Line]:
        """Return the lines that a part completes."""
        lines: list[Line] = []
        at = data.find(b"\n") + 1 if self.in_middle else 0
        if self.in_middle:
            self.position, self.skipped, self.in_middle = start + at, self.skipped + at, False
        while (end := data.find(b"\n", at)) >= 0:
            lines.append(Line(self.position, self.rest + data[at:end]))
            at = end + 1
            self.position, self.rest = start + at, b""
        self.rest += data[at:]
        if len(self.rest) > _OPEN:  # of a progress bar its last state is enough
            self.rest = self.rest.rstrip(b"\r").rpartition(b"\r")[2]
        if len(self.rest) > _OPEN:
            lines.append(Line(self.position, self.rest))
            self.position, self.rest = start + len(data), b""
        return lines
