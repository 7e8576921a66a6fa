"""Pages of a job, in the system's Chromium: how soon they can be read, how soon an event is on them, and what 50 open ones cost.

    python benchmarks/pages.py [--runs 10]

A page can be read when its parser is through and its first content is painted, by the browser's own clock. Readers come from the
list of jobs, in the same tab. The job of three tasks runs; the one of 1,000 is over, and 100 of its attempts failed. The peer is a small
picture from the same server: what the browser itself takes here, where it paints without a GPU. The 50 open pages are streams of
server-sent events, which cost a server the same.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import figures
import psutil

sys.path.append(str(figures.ROOT / "tests"))

import browser
from waiting import until
from web import jobs, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TIMES = """(() => {
  const [page] = performance.getEntriesByType("navigation");
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const readable = Math.max(paint?.startTime ?? 0, page.domInteractive);
  return paint && page.domInteractive && [page.responseStart - page.requestStart, readable - page.responseStart];
})()"""
# Notes when the page shows each event, in ms since 1970.
SEEN = """(() => {
  window.seen = {};
  const look = () => { for (const row of document.querySelectorAll("#recent li")) window.seen[row.value] ??= Date.now(); };
  look();
  new MutationObserver(look).observe(document.body, {childList: true, subtree: true, attributes: true, characterData: true});
})()"""
OPEN, WATCHED = 50, 20.0  # pages, s
QUIET = 15.0  # % of the processors
MIB = 1 << 20


def measure(runs: int) -> list[figures.Row]:
    with (
        figures.place() as environ,
        tempfile.TemporaryDirectory() as folder,
        browser.started() as chromium,
        ExitStack() as stack,
    ):
        os.environ.update(environ)
        job = stack.enter_context(jobs.by_hand(Path(folder) / "job", replicas=3))
        server = stack.enter_context(serve.served(job.id))
        job.go_on(1)
        until(lambda: psutil.cpu_percent(1.0) < QUIET)  # what comes with a start is over
        large_server = stack.enter_context(serve.served(jobs.record(jobs.thousand_tasks())))
        small, large, bare = [], [], []
        for _ in range(runs + 1):
            small.append(readable(chromium, server, server.address))
            large.append(readable(chromium, large_server, large_server.address))
            bare.append(readable(chromium, server, f"{server.address}static/icon.svg"))
        small, large, bare = small[1:], large[1:], bare[1:]  # the first ones are the servers' first too
        delays = events_to_page(chromium, job, server, runs)
        share, memory = open_pages(job, server)
    return [
        row("first byte to readable page, 3 tasks", small, 0.15, bare),
        figures.Row("the server's part before that", [server for server, _ in small], "s"),
        row("first byte to readable page, 1,000 tasks, 100 attempts failed", large, 0.4, bare),
        figures.Row("the server's part before that, 1,000 tasks", [server for server, _ in large], "s"),
        figures.Row("an event's time in the log to its being on the page", delays, "s", 0.25),
        figures.Row(f"{OPEN} open pages of a job that reports: the server's share of a core", [share], "%", 10.0),
        figures.Row(f"{OPEN} open pages: the server's memory", [memory], "MiB", 20.0),
    ]


Times = tuple[float, float]


def row(name: str, pages: list[Times], target: float, bare: list[Times]) -> figures.Row:
    return figures.Row(name, [page for _, page in pages], "s", target, "a small picture", [page for _, page in bare])


def readable(chromium: Browser, server: serve.Server, address: str) -> Times:
    """Return the seconds that the server took to answer, and those until the page could be read, in a new session."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    try:
        context.add_cookies([server.cookie])
        page = context.new_page()
        page.goto(f"{server.address}../../", wait_until="load")
        page.goto(address, wait_until="load")
        before, after = until(lambda: browser.evaluated(page, TIMES))
        return before / 1000, after / 1000
    finally:
        context.close()


def events_to_page(chromium: Browser, job: jobs.ByHand, server: serve.Server, runs: int) -> list[float]:
    """Save the job's output again and again, and return how long each event of that took to the page."""
    context = chromium.new_context()
    try:
        context.add_cookies([server.cookie])
        page = context.new_page()
        page.goto(server.address)
        until(lambda: page.locator("#recent li").count())
        browser.evaluated(page, SEEN)
        known = len(job.events())
        for _ in range(runs):
            job.run.save()
        events = job.events()[known:]
        until(lambda: str(events[-1]["n"]) in browser.evaluated(page, "window.seen"))
        seen = browser.evaluated(page, "window.seen")
        return [seen[str(event["n"])] / 1000 - event["at"] for event in events if str(event["n"]) in seen]
    finally:
        context.close()


def open_pages(job: jobs.ByHand, server: serve.Server) -> tuple[float, float]:
    """Return the percentage of a core, and the MiB more, that the server takes with many pages open."""
    process = psutil.Process(server.pid)
    memory = process.memory_info().rss

    async def scene() -> tuple[float, float]:
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(read(server)) for _ in range(OPEN)]
            await asyncio.sleep(3.0)
            began, used = time.monotonic(), cpu(process)
            while (passed := time.monotonic() - began) < WATCHED:
                job.go_on(round(passed / WATCHED * jobs.STEPS))
                await asyncio.sleep(1.0)
            share = (cpu(process) - used) / (time.monotonic() - began)
            more = process.memory_info().rss - memory
            for reader in readers:
                reader.cancel()
        return share * 100, more / MIB

    with no_loop():
        return asyncio.run(scene())


@contextmanager
def no_loop() -> Iterator[None]:
    """Let another loop run where Playwright has left its own."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def read(server: serve.Server) -> None:
    """Open a page, and read what is new on it until cancelled."""
    place = urlsplit(server.address)
    assert place.hostname is not None
    for path in (place.path, f"{place.path}live?v=0"):
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            cookie = f"{server.cookie['name']}={server.cookie['value']}"
            head = f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            if b" 200 " not in await reader.readline():
                raise AssertionError(f"no page at {path}")
            while await reader.read(1 << 16):
                pass
        finally:
            writer.close()


if __name__ == "__main__":
    figures.main(measure, 10, __doc__)
