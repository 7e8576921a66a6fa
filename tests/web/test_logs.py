"""Pages of logs in a browser: they follow, wait while a reader looks back, go on over a restart, and are found through by keys."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from playwright.sync_api import Page, expect
from printed_logs import PrintedLogs
from waiting import until

from trainmaster.web.contract import Reader
from trainmaster.web.pages.app import job_pages

pytestmark = pytest.mark.xdist_group("browser")

TASK = "worker:0"
EVIL = "<script>document.title = 'evil'</script><img src=x onerror=\"document.title='evil'\">"


class Site:
    """A server of the pages of a job's logs, with a loop of its own."""

    def __init__(self, place: Path, live: bool) -> None:
        self.facts, self._live = PrintedLogs(place, TASK, "worker:1"), live
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.address = ""

    def start(self) -> None:
        import uvicorn

        bound = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        pages = job_pages(self.facts, lambda request: Reader(live=self._live))  # type: ignore[arg-type]
        self._server = uvicorn.Server(uvicorn.Config(pages, log_level="warning", timeout_graceful_shutdown=1))
        self._thread.start()
        self._serving = asyncio.run_coroutine_threadsafe(self._server.serve([bound]), self._loop)

    def print(self, text: str, task: str = TASK, attempt: int = 1) -> None:
        asyncio.run_coroutine_threadsafe(self.facts.print(task, text.encode(), attempt), self._loop).result(60)

    def stop(self) -> None:
        self._server.should_exit = True
        self._serving.result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.full)], ids=["streams", "polls"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, request.param)
    site.start()
    try:
        yield site
    finally:
        site.stop()


def last_line(page: Page) -> Any:
    return page.locator(".line .text").last


def hears_keys(page: Page) -> None:
    """Wait until the page's script is there."""
    expect(page.locator(".keys")).to_be_visible()


def test_a_log_grows_over_a_restart_to_its_end(site: Site, page: Page) -> None:
    site.print("".join(f"line {n}\n" for n in range(300)) + f"{EVIL}\n 10 %")
    page.goto(f"{site.address}/logs/{TASK}")
    expect(last_line(page)).to_have_text(" 10 %")
    expect(page.locator(".line .text").nth(-2)).to_have_text(EVIL)
    expect(page.get_by_role("button", name="Following")).to_be_visible()
    assert (
        browser.evaluated(
            page, "(log => log.scrollHeight - log.scrollTop - log.clientHeight)(document.querySelector('.log'))"
        )
        < 5
    )
    site.print("\r 20 %")
    expect(last_line(page)).to_have_text(" 20 %")
    page.locator(".log").focus()
    page.keyboard.press("PageUp")
    expect(page.get_by_role("button", name="Follow", exact=True)).to_be_visible()
    site.print("\nwhile looking back\n")
    page.keyboard.press("f")
    expect(last_line(page)).to_have_text("while looking back")
    site.facts.rows[TASK]["attempt"] = 2
    site.print("again\n", attempt=2)
    expect(page.locator(".gap")).to_have_text("attempt 2 began")
    expect(last_line(page)).to_have_text("again")
    site.facts.rows[TASK]["state"] = "failed"
    site.print("over\n", attempt=2)
    expect(page.locator(".foot [role=status]")).to_have_text("this is the end of the log")
    expect(last_line(page)).to_have_text("over")
    assert page.title() == "digits: log of worker:0"
    assert browser.violations(page) == []


def test_a_reader_finds_the_way_by_keys(site: Site, page: Page) -> None:
    site.print(
        "".join(f"\x1b[3{n % 8}mline {n}\x1b[0m {'x' * 80}\n" for n in range(5_000))
        + "ValueError: this\n"
        + "later\n" * 3_000
    )
    page.goto(f"{site.address}/logs/{TASK}")
    hears_keys(page)
    page.keyboard.press("g")
    expect(page.locator(".line .text").first).to_contain_text("line 0 ")
    page.keyboard.press("/")
    page.keyboard.type("LINE 4999")
    page.keyboard.press("Enter")
    expect(page.locator(".here .hit")).to_have_text("line 4999")
    expect(page.locator(".here")).to_be_in_viewport()
    hears_keys(page)
    page.locator(".log").focus()
    page.keyboard.press("n")
    expect(page.locator(".hit.current")).to_have_text("line 4999")
    page.keyboard.press("n")
    expect(page.get_by_text("does not come again after")).to_be_visible()
    page.get_by_role("link", name="First error").click()
    expect(page.locator(".here .text")).to_have_text("ValueError: this")
    hears_keys(page)
    page.keyboard.press("w")
    expect(page.locator(".logs.unwrapped")).to_be_visible()
    page.keyboard.press("G")
    expect(last_line(page)).to_have_text("later")
    expect(page.get_by_role("button", name="Following")).to_be_visible()
    count = page.locator(".line").count()

    def scrolled_to_earlier_lines() -> bool:
        page.locator(".log").evaluate(
            "log => log.scrollTo(0, 0)"
        )  # right after the key G, the page holds on to the end
        return page.locator(".line").count() > count

    until(scrolled_to_earlier_lines)


def test_logs_are_side_by_side_in_the_dark(site: Site, new_page: Any) -> None:
    page = new_page(color_scheme="dark", viewport={"width": 360, "height": 800})
    site.print("".join(f"\x1b[38;5;{n}mcolour {n}\x1b[0m \x1b[48;5;{n}mback {n}\x1b[0m\n" for n in range(0, 256, 9)))
    site.print("one\n", "worker:1")
    page.goto(f"{site.address}/logs?tasks=worker:0,worker:1")
    expect(page.locator(".log").nth(1).locator(".line .text").last).to_have_text("one")
    site.print("two\n", "worker:1")
    expect(page.locator(".log").nth(1).locator(".line .text").last).to_have_text("two")
    assert browser.evaluated(page, "document.documentElement.scrollWidth") <= 360
    assert browser.violations(page) == []
    assert browser.violations(new_page_at(new_page, f"{site.address}/logs/{TASK}")) == []


def new_page_at(new_page: Any, address: str) -> Page:
    page: Page = new_page(color_scheme="light")
    page.goto(address)
    expect(last_line(page)).to_be_visible()
    return page


def test_a_log_is_read_without_scripts(site: Site, new_page: Any) -> None:
    page = new_page(java_script_enabled=False)
    site.print("".join(f"line {n} {'x' * 80}\n" for n in range(5_000)))
    page.goto(f"{site.address}/logs/{TASK}")
    expect(last_line(page)).to_be_in_viewport()  # the end, without scrolling
    page.get_by_role("link", name="earlier").click()
    expect(page.get_by_role("link", name="later")).to_be_visible()
    page.get_by_role("searchbox").fill("line 77 ")
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".here .hit")).to_have_text("line 77 ")
    expect(page.locator(".here")).to_be_in_viewport()
    assert page.get_by_role("button", name="Follow").count() == 0
