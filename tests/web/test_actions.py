"""Actions in a browser: forms that confirm them, what the event log keeps of them, and who else is refused."""

from __future__ import annotations

import getpass
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import browser
import pytest
from conformance.engines import processes_of
from playwright.sync_api import Page, expect
from waiting import until

from web import jobs
from web.conftest import NewPage, Screenshot, Served

pytestmark = pytest.mark.xdist_group("browser")

USER = f"user {getpass.getuser()}"


@contextmanager
def stopped_agent(job: jobs.ByHand, task: str) -> Iterator[None]:
    """Have a task's agent stand still."""
    (agent,) = [mark.process.pid for mark in processes_of(job.id) if (mark.kind, mark.task) == ("agent", task)]
    os.kill(agent, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(agent, signal.SIGCONT)


def test_a_save_is_clicked_and_counts_its_tasks(
    by_hand: jobs.ByHand, served: Served, page: Page, screenshot: Screenshot
) -> None:
    page.goto(served(by_hand.id))
    by_hand.go_on(2)
    expect(page.locator("#task-worker-3a-1")).to_contain_text("20 %")
    with stopped_agent(by_hand, "worker:1"):
        page.get_by_role("link", name="Save").click()
        expect(page.locator("form.confirm")).to_contain_text("Save the outputs as they are now?")
        assert by_hand.told("save-requested") == []
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status").first).to_contain_text("A save was asked for")
        saves = page.locator("#data .saves")
        expect(saves).to_contain_text("1/2 saved")
        expect(saves.get_by_role("progressbar")).to_have_attribute("value", "1")
        screenshot(page, "half")
    expect(saves).to_contain_text("2/2 saved")
    expect(saves.get_by_role("progressbar")).to_have_count(0)
    expect(saves).to_contain_text(f"{by_hand.folder / 'out'}/_saves/")
    expect(saves.locator("time")).to_have_count(1)
    page.reload()
    expect(page.locator(".note.hint[role=status]")).to_have_count(0)  # it was said once
    page.goto(f"{page.url}?done=kill")  # a link that claims what nobody did
    expect(page.locator(".note.hint[role=status]")).to_have_count(0)
    (event,) = by_hand.told("save-requested")
    assert event["by"] == USER
    expect(page.locator("#recent")).to_contain_text(f"a save was asked for by {USER}")


def test_a_kill_is_clicked_and_says_who_and_why(
    by_hand: jobs.ByHand, served: Served, page: Page, screenshot: Screenshot
) -> None:
    address = served(by_hand.id)
    page.goto(address)
    page.locator("#actions").get_by_role("link", name="Kill").click()
    page.get_by_role("link", name="leave it").click()
    expect(page.locator("#head")).to_contain_text("running")
    page.locator("#actions").get_by_role("link", name="Kill").click()
    page.get_by_label("Why").fill("<b>too slow</b>")
    screenshot(page, "form")
    page.get_by_role("button", name="Kill").click()
    expect(page.locator("#head")).to_contain_text("killed")
    assert by_hand.end()["state"] == "killed"
    (event,) = by_hand.told("kill-requested")
    assert (event["by"], event["why"]) == (USER, "<b>too slow</b>")
    page.get_by_role("link", name="Events").first.click()
    expect(page.locator("main")).to_contain_text(f"{USER} asked to kill the job")


def test_a_tasks_page_acts_on_the_task(
    by_hand: jobs.ByHand, served: Served, page: Page, screenshot: Screenshot
) -> None:
    page.goto(served(by_hand.id))
    page.get_by_role("link", name="worker:1").first.click()
    expect(page.locator("h1")).to_contain_text("worker:1")
    by_hand.go_on(4)
    expect(page.locator("main")).to_contain_text("40 %")
    screenshot(page, "task")
    page.locator("#task-actions").get_by_role("link", name="Stacks").click()
    page.get_by_role("button", name="Stacks").click()
    expect(page.get_by_role("status").first).to_contain_text("The stacks come into the task's log")
    by_hand.until_line("train_by_hand.py", "worker:1")
    page.get_by_role("link", name="worker:1").first.click()
    page.locator("#task-actions").get_by_role("link", name="Kill").click()
    expect(page.get_by_label("Task")).to_have_value("worker:1")
    page.get_by_role("button", name="Kill").click()
    expect(page.locator("#head")).to_contain_text("running")
    by_hand.attempt(2, "worker:1")
    expect(page.locator("#recent")).to_contain_text(f"worker:1 was killed by {USER}")


FORGED = """<!doctype html><html lang=en><meta charset=utf-8><title>an offer</title><link rel=icon href=data:,>
<form method=post action="{address}actions/kill"><input name=why value=forged><input name=csrf value=guessed><button>Win</button></form>
<iframe title=frame src="{address}actions/kill"></iframe></html>"""
SEND = "fetch({address!r}, {{method: 'POST', {options} body: new URLSearchParams({fields})}})"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["same-host", "other-host"])
def test_another_site_does_nothing(
    by_hand: jobs.ByHand, served: Served, site: str, page: Page, complaints: list[str], tmp_path: Path, host: str
) -> None:
    """A page of another port of this host is of the same site: the browser sends our cookie with what it asks for."""
    address = served(by_hand.id)
    (tmp_path / "page.html").write_text(FORGED.format(address=address))
    page.goto(f"{site.replace('127.0.0.1', host)}/page.html")
    until(lambda: page.title() and any("frame" in complaint for complaint in complaints), what="the frame is refused")
    send = SEND.format(
        address=f"{address}actions/kill", options="mode: 'no-cors', credentials: 'include',", fields="{}"
    )
    browser.evaluated(page, f"{send}.catch(() => 0)")
    page.get_by_role("button", name="Win").click()
    expect(page.locator("body")).to_contain_text("another site has sent this request")
    assert_nothing_was_done(by_hand)
    complaints.clear()


def test_an_action_needs_a_form_of_the_session(
    by_hand: jobs.ByHand, served: Served, page: Page, new_page: NewPage, complaints: list[str]
) -> None:
    address = served(by_hand.id)
    page.goto(f"{address}actions/kill")
    token = page.locator("input[name=csrf]").get_attribute("value")
    for fields in ("{}", "{csrf: 'guessed'}", "{csrf: ''}"):
        send = SEND.format(address=f"{address}actions/kill", options="", fields=fields)
        assert browser.evaluated(page, f"{send}.then(reply => reply.status)") == 403
    page.goto(f"{address}actions/kill?why=a+link&csrf={token}")  # a link shows the form
    expect(page.get_by_label("Why")).to_have_value("a link")
    stranger = new_page()
    stranger.context.clear_cookies()
    stranger.goto(address)
    expect(stranger.get_by_role("heading")).to_contain_text("Sign in")
    send = SEND.format(address=f"{address}actions/kill", options="", fields=f"{{csrf: {token!r}}}")
    assert browser.evaluated(stranger, f"{send}.then(reply => reply.status)") == 401
    assert_nothing_was_done(by_hand)
    complaints.clear()


def assert_nothing_was_done(job: jobs.ByHand) -> None:
    assert job.told("kill-requested") == []
    assert job.status()["state"] == "running"
