"""The page of a job, in a browser: while the job goes on, at its end, and whatever the reader's screen, colours and browser are like."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import browser
import pytest
from playwright.sync_api import Page, expect

from trainmaster.core.machine.events import Event
from web import jobs
from web.conftest import NewPage, Screenshot, Served

pytestmark = pytest.mark.xdist_group("browser")

PATHS = ("", "tasks/worker:0", "timeline", "events", "configuration", "actions/kill")


def fits(page: Page) -> bool:
    """Tell whether the page as a whole needs no scrolling to the side."""
    return bool(browser.evaluated(page, "document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def width(page: Page, selector: str) -> float:
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    return box["width"]


def test_the_page_follows_a_job_to_its_end(
    by_hand: jobs.ByHand, served: Served, page: Page, screenshot: Screenshot
) -> None:
    page.goto(served(by_hand.id))
    expect(page).to_have_title("by-hand")
    expect(page.locator("#head")).to_contain_text("running")
    expect(page.locator("#tasks tbody")).to_have_count(2)
    by_hand.go_on(3)
    expect(page.locator("#task-worker-3a-0")).to_contain_text("step 3")
    expect(page.locator("#task-worker-3a-1")).to_contain_text("30 %")
    screenshot(page, "running")
    by_hand.go_on(7)
    expect(page.locator("#head")).to_contain_text("70 %")
    by_hand.finish()
    expect(page.locator("#head")).to_contain_text("succeeded")
    expect(page.locator("#recent")).to_contain_text("the job ended: succeeded")
    screenshot(page, "ended")


def test_a_failure_arrives_with_its_last_lines(
    by_hand: jobs.ByHand, served: Served, page: Page, screenshot: Screenshot
) -> None:
    page.goto(served(by_hand.id))
    expect(page.locator("#head")).to_contain_text("running")
    by_hand.fail("loss is nan")
    alert = page.locator("#alert")
    expect(alert.get_by_role("heading")).to_have_text(re.compile("worker:[01] FloatingPointError: loss is nan"))
    expect(alert).to_contain_text("exited with status 1")
    expect(page.locator("#head")).to_contain_text("exited with status 1: FloatingPointError: loss is nan")
    expect(alert.locator("pre")).to_contain_text("FloatingPointError: loss is nan")
    screenshot(page, "failed")


def test_the_last_lines_of_a_failure_open_at_their_end_and_the_list_says_it(
    by_hand: jobs.ByHand, served: Served, new_page: NewPage
) -> None:
    by_hand.fail("word " * 3000 + "end")
    by_hand.end()
    page = new_page(java_script_enabled=False, viewport={"width": 360, "height": 800})
    address = served(by_hand.id)
    page.goto(address)
    box = page.locator("#alert pre")
    expect(box).to_contain_text("FloatingPointError")
    from_end = "pre => Math.abs(pre.scrollTop) < 2 && pre.scrollHeight > pre.clientHeight"
    assert box.evaluate(from_end), "in a reversed box the end is at 0"
    page.goto(f"{address}../../")
    expect(page.locator("#jobs")).to_contain_text("FloatingPointError: word word")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(steady: str, new_page: NewPage, screenshot: Screenshot, scheme: str) -> None:
    page = new_page(color_scheme=scheme)
    found = {}
    for path in PATHS:
        page.goto(steady + path)
        expect(page.locator("main")).to_be_visible()
        screenshot(page, path.replace("/", "-"))
        found[path] = browser.violations(page)
    assert {path: violations for path, violations in found.items() if violations} == {}


@pytest.mark.parametrize("size", [(360, 740), (1280, 800), (3840, 2160)], ids=["phone", "laptop", "4k"])
def test_pages_fit_the_window(steady: str, new_page: NewPage, screenshot: Screenshot, size: tuple[int, int]) -> None:
    page = new_page(viewport={"width": size[0], "height": size[1]})
    wide = []
    for path in PATHS:
        page.goto(steady + path)
        wide += [] if fits(page) else [path]
    assert wide == []
    page.goto(steady)
    assert width(page, "#tasks") >= min(size[0] * 0.9, 2000), "the window is used"
    screenshot(page, "job")


def test_pages_read_without_scripts(steady: str, new_page: NewPage, screenshot: Screenshot) -> None:
    page = new_page(java_script_enabled=False)
    page.goto(steady)
    expect(page.locator("#head")).to_contain_text("running")
    expect(page.locator("#task-worker-3a-1")).to_contain_text("20 %")
    screenshot(page, "job")
    page.get_by_role("link", name="worker:0").first.click()
    expect(page.locator("h1")).to_contain_text("worker:0")
    page.get_by_role("link", name="Events").click()
    expect(page.locator("main")).to_contain_text("the program of worker:0 started")


def test_keys_lead_through_the_page(steady: str, page: Page) -> None:
    page.goto(steady)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="to the content")).to_be_focused()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(browser.evaluated(page, "document.activeElement.textContent.trim()"))
    assert {"Events", "Configuration", "worker:0", "worker:1"} <= set(reached)


@pytest.mark.parametrize("live", [True, pytest.param(False, marks=pytest.mark.full)], ids=["scripts", "no-scripts"])
def test_hostile_text_is_text(
    tmp_path: Path, served: Served, new_page: NewPage, screenshot: Screenshot, live: bool
) -> None:
    page = new_page(java_script_enabled=live)
    with jobs.hostile(tmp_path / "job") as job:
        address = served(job.id)
        page.goto(address)
        job.go_on(2)
        job.until_line("step 2")
        job.fail(" ".join(jobs.HOSTILE))
        assert job.end()["state"] == "failed"
        for path in (*PATHS, f"?tasks={quote(jobs.HOSTILE[1])}", f"events?text={quote(jobs.HOSTILE[1])}"):
            page.goto(address + path)
            expect(page.locator("main")).to_be_visible()
            screenshot(page, path.partition("?")[0].replace("/", "-"))
            assert_harmless(page)


def assert_harmless(page: Page) -> None:
    """Hostile text was no script, no element and no link, and no template has computed anything of it."""
    assert browser.evaluated(page, "window.hostile") is None
    assert (
        page.locator(
            "img, svg[onload], [onerror], [onfocus], [autofocus], a[href^='javascript:'], meta[http-equiv]"
        ).count()
        == 0
    )
    assert page.locator("#head").count() <= 1
    assert "1337" not in page.content()


def test_a_thousand_tasks(
    thousand_tasks: list[Event], served: Served, new_page: NewPage, screenshot: Screenshot
) -> None:
    page = new_page(viewport={"width": 1280, "height": 800})
    page.goto(served(jobs.record(thousand_tasks)))
    expect(page.locator("#alert")).to_contain_text("exited with status 1")
    expect(page.locator("#alert pre")).to_contain_text("ValueError: loss is nan")
    expect(page.locator("#tasks tbody").first).to_contain_text("failed")
    screenshot(page, "job")
    assert fits(page)
    page.get_by_label("Find tasks").fill("worker:999")
    page.get_by_label("Find tasks").press("Enter")
    expect(page.locator("#tasks tbody")).to_have_count(1)
    assert browser.violations(page) == []


def test_a_click_ends_the_job_without_scripts_too(by_hand: jobs.ByHand, served: Served, new_page: NewPage) -> None:
    page = new_page(java_script_enabled=False)
    page.goto(served(by_hand.id))
    page.get_by_role("link", name="Kill").first.click()
    page.get_by_role("button").click()
    assert by_hand.end()["state"] == "killed"
    page.reload()
    expect(page.locator("#head")).to_contain_text("killed")


def test_an_address_without_a_page_says_so_and_leads_back(
    steady: str, page: Page, complaints: list[str], screenshot: Screenshot
) -> None:
    for address, back in ((f"{steady}nothing", steady), (f"{steady}../../nothing/at/all", f"{steady}../../")):
        page.goto(address)
        expect(page.locator(".note.failed")).to_contain_text(re.compile("has no page|nothing has the address"))
        page.locator("main a").click()
        expect(page.locator("h1")).to_be_visible()
        assert page.url == page.evaluate("address => new URL(address).href", back)
    complaints.clear()
