"""How open pages stay current: any number of tabs, tabs that nobody sees, a server that falls silent, one that was started again."""

from __future__ import annotations

import os
import signal
from typing import Any

import browser
import pytest
from playwright.sync_api import BrowserContext, Page, expect
from waiting import until

from web import jobs, serve
from web.conftest import NewPage, Served

pytestmark = pytest.mark.xdist_group("browser")

TABS = 30
# A tab that can be hidden as the browser does it, and says which streams it has opened and closed.
WATCHED = """
    let isHidden = false;
    Object.defineProperty(document, "hidden", {get: () => isHidden});
    window.hide = (is) => { isHidden = is; document.dispatchEvent(new Event("visibilitychange")); };
    window.streams = [];
    const Native = window.EventSource;
    window.EventSource = class extends Native {
        constructor(address) { super(address); window.streams.push(this); }
    };
"""
OPEN = "window.streams.filter(stream => stream.readyState !== 2).length"


def streams(tab: Page) -> int:
    return int(tab.evaluate(OPEN))


def test_thirty_open_tabs_of_jobs_and_logs_all_go_on(by_hand: jobs.ByHand, served: Served, new_page: NewPage) -> None:
    address = served(by_hand.id)
    context: BrowserContext = new_page().context
    tabs = [context.new_page() for _ in range(TABS)]
    for number, tab in enumerate(tabs):
        tab.goto(address + ("logs/worker:0" if number % 2 else ""))
    by_hand.go_on(3)
    for number, tab in enumerate(tabs):
        expect(tab.locator(".log" if number % 2 else "#task-worker-3a-0")).to_contain_text("step 3")
    tabs[0].goto(f"{address}events")
    expect(tabs[0].locator("main")).to_contain_text("the program of worker:0 started")


@pytest.mark.parametrize(("path", "part"), [("", "#task-worker-3a-0"), ("logs/worker:0", ".log")], ids=["job", "log"])
def test_a_tab_that_nobody_sees_has_no_stream_and_asks_nothing(
    by_hand: jobs.ByHand, served: Served, new_page: NewPage, path: str, part: str
) -> None:
    page = new_page()
    page.add_init_script(WATCHED)
    page.goto(served(by_hand.id) + path)
    until(lambda: streams(page) == 1, what="the stream of a page that is seen")
    page.evaluate("hide(true)")
    assert streams(page) == 0
    by_hand.go_on(2)
    by_hand.until_line("step 2")
    expect(page.locator(part)).not_to_contain_text("step 2")
    page.evaluate("hide(false)")
    expect(page.locator(part)).to_contain_text("step 2")


@pytest.mark.full  # some 45 s, for a silence is told from a pause
def test_a_server_that_falls_silent_is_noticed_and_comes_back(
    by_hand: jobs.ByHand, page: Page, cookies: list[Any], complaints: list[str]
) -> None:
    with serve.served(by_hand.id) as server:
        page.context.add_cookies([server.cookie])
        page.goto(server.address)
        by_hand.go_on(1)
        expect(page.locator("#task-worker-3a-0")).to_contain_text("step 1")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            offline = page.locator("#offline")
            expect(offline).to_contain_text("the server gave no answer within 20 s; last heard from the server")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        expect(offline).to_be_hidden()
        by_hand.go_on(2)
        expect(page.locator("#task-worker-3a-0")).to_contain_text("step 2")
        page.goto("about:blank")
    complaints.clear()


def test_a_page_goes_on_once_its_user_has_signed_in_at_a_server_that_was_started_again(
    by_hand: jobs.ByHand, page: Page, complaints: list[str]
) -> None:
    with serve.served(by_hand.id) as server:
        page.context.add_cookies([server.cookie])
        page.goto(server.address)
        expect(page.locator("#head")).to_contain_text("running")
    offline = page.locator("#offline")
    expect(offline).to_contain_text("the server is not reachable; last heard")
    with serve.served(by_hand.id) as again:
        assert again.address == server.address
        expect(offline).to_contain_text(
            "you are not signed in any more"
        )  # who had the port meanwhile may have the old cookie
        page.context.add_cookies([again.cookie])
        browser.evaluated(page, "document.dispatchEvent(new Event('visibilitychange'))")
        expect(offline).to_be_hidden()
        by_hand.go_on(2)
        expect(page.locator("#task-worker-3a-0")).to_contain_text("step 2")
        page.locator("#actions").get_by_role("link", name="Kill").click()
        page.get_by_role("button", name="Kill").click()  # a form of the new process
        assert by_hand.end()["state"] == "killed"
        page.goto("about:blank")
    complaints.clear()


def test_a_page_whose_session_is_gone_leads_to_the_sign_in(
    by_hand: jobs.ByHand, served: Served, page: Page, complaints: list[str]
) -> None:
    page.goto(served(by_hand.id))
    expect(page.locator("#head")).to_contain_text("running")
    page.context.clear_cookies()
    browser.evaluated(page, "document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#offline")).to_contain_text("you are not signed in any more")
    page.locator("#offline a").click()
    expect(page.get_by_role("heading")).to_contain_text("Sign in")
    complaints.clear()
