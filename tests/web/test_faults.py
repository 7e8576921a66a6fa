"""What befalls a job while its page is open: its master dies, it is removed; and addresses that lead elsewhere."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import browser
import pytest
from conformance.engines import TM, processes_of
from playwright.sync_api import Page, expect
from rest_server import serving
from waiting import until

from trainmaster.client.jobs.sweep import is_abandoned
from trainmaster.host import processes
from trainmaster.log.index import Headline
from trainmaster.web.contract import Reader
from trainmaster.web.pages.jobs import jobs_page
from web import jobs
from web.conftest import NewPage, Screenshot, Served

pytestmark = pytest.mark.xdist_group("browser")

TRAVERSALS = (
    "..", "../..", "../../../../etc/passwd", "/etc/passwd", "....//....//etc/passwd", "..\\..\\etc\\passwd", "%2e%2e/%2e%2e/etc/passwd",
    "..%252f..%252fetc%252fpasswd", "worker:0/../../../token", "worker:0\0.txt", "file:///etc/passwd", "master/../../../job.json",
)  # fmt: skip
PARAMETERS = (
    "{}", "tasks/{}", "tasks/{}/live", "logs/{}", "logs/{}/raw", "logs?tasks={}", "logs/worker:0?attempt={}", "logs/worker:0?at={}",
    "logs/worker:0?find={}", "actions/{}", "actions/kill?task={}", "links/{}", "static/{}", "static/vendor/{}", "events?text={}",
    "events?before={}", "metrics.json?task={}", "?tasks={}", "?page={}", "live?v={}", "../{}/", "../../static/{}", "../../?q={}",
    "../../api/v1/jobs/{}", "../../api/v1/jobs/{job}/tasks/{}", "../../api/v1/jobs/{job}/logs/{}",
    "../../api/v1/jobs/{job}/logs/worker:0?attempt={}", "../../api/v1/jobs/{job}/metrics?task={}",
    "../../api/v1/jobs/{job}/events?after={}",
)  # fmt: skip
SECRETS = (b"root:x:", b"BEGIN ")  # of what these lead to: the users of this machine, and keys


def test_a_master_dies_and_another_comes_under_the_page(
    by_hand: jobs.ByHand, served: Served, page: Page, screenshot: Screenshot
) -> None:
    page.goto(served(by_hand.id))
    by_hand.go_on(2)
    expect(page.locator("#task-worker-3a-0")).to_contain_text("step 2")
    (master,) = [mark.process.pid for mark in processes_of(by_hand.id) if mark.kind == processes.MASTER]
    os.kill(master, signal.SIGKILL)
    expect(page.locator("#recent")).to_contain_text("master 2 started")
    expect(page.locator("#masters")).to_contain_text("2")
    screenshot(page, "second-master")
    by_hand.go_on(6)
    expect(page.locator("#task-worker-3a-0")).to_contain_text("step 6")
    assert by_hand.task("worker:0")["attempt"] == 1
    by_hand.finish()
    expect(page.locator("#head")).to_contain_text("succeeded")


def test_a_job_is_removed_while_its_page_is_open(
    by_hand: jobs.ByHand, served: Served, page: Page, complaints: list[str], screenshot: Screenshot
) -> None:
    address = served(by_hand.id)
    page.goto(address)
    by_hand.go_on(2)
    expect(page.locator("#task-worker-3a-0")).to_contain_text("step 2")
    by_hand.finish()
    by_hand.end()
    expect(page.locator("#head")).to_contain_text("succeeded")
    until(lambda: is_abandoned(by_hand.id), what="the end of its master")
    subprocess.run([TM, "remove", by_hand.id], check=True, timeout=60)
    page.get_by_role("link", name="Events").first.click()
    expect(page.locator("main")).to_contain_text("was removed")
    screenshot(page, "removed")
    page.goto(f"{address}../../")
    expect(page.locator("h1")).to_be_visible()
    expect(page.get_by_role("link", name=by_hand.id)).to_have_count(0)
    complaints.clear()


def test_no_parameter_leads_elsewhere(steady: str, cookies: list[dict[str, str]]) -> None:
    place = urlsplit(steady)
    job = place.path.strip("/").rpartition("/")[2]
    *_, cookie = (cookie for cookie in cookies if cookie["url"] == f"http://{place.netloc}/")
    connection = http.client.HTTPConnection(place.netloc, timeout=60)
    headers = {"Cookie": f"{cookie['name']}={cookie['value']}", "Accept": "*/*"}
    for parameter in PARAMETERS:
        for text in TRAVERSALS:
            for written in {quote(text), quote(text, safe=""), text.replace("\0", "%00")}:
                path = place.path + parameter.replace("{job}", job).replace("{}", written)
                connection.request("GET", path, headers=headers)
                response = connection.getresponse()
                content = response.read(200_000)
                assert response.status < 500, path
                assert not any(secret in content for secret in SECRETS), path
                connection.close()


def test_axe_finds_nothing_in_the_list_and_in_a_log(
    steady: str, new_page: NewPage, complaints: list[str], screenshot: Screenshot
) -> None:
    for scheme, width in (("light", 1280), ("dark", 360)):
        page = new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
        for path, part in (("../../", "h1"), ("logs/worker:0", ".line"), ("logs", "h1"), ("links/none", "main")):
            page.goto(steady + path)
            expect(page.locator(part).first).to_be_visible()
            screenshot(page, f"{scheme}-{path.replace('/', '-')}")
            assert browser.violations(page) == []
            assert browser.evaluated(page, "document.documentElement.scrollWidth") <= width
    assert complaints
    complaints.clear()  # of the link that there is not


def test_an_exported_job_opens_without_a_server(
    by_hand: jobs.ByHand, page: Page, complaints: list[str], tmp_path: Path, screenshot: Screenshot
) -> None:
    by_hand.go_on(2)
    by_hand.until_line("step 2")
    by_hand.fail("loss is nan")
    by_hand.end()
    folder = tmp_path / "exported"
    done = subprocess.run(
        [TM, "export", by_hand.id, str(folder)], capture_output=True, text=True, check=True, timeout=120
    )
    assert (done.stdout.strip(), done.stderr) == (str(folder / "index.html"), "")
    page.goto((folder / "index.html").as_uri())
    expect(page.locator("#alert pre")).to_contain_text("FloatingPointError: loss is nan")
    expect(page.locator("#charts")).to_contain_text("Progress")
    screenshot(page, "job")
    assert complaints == []
    assert browser.violations(page) == []
    complaints.clear()  # axe's own, which asks for the style sheet
    assert page.locator("form, button[type=submit]").count() == 0
    page.get_by_role("link", name="worker:1").first.click()
    expect(page.locator("h1")).to_contain_text("worker:1")
    page.get_by_role("link", name="Events").first.click()
    expect(page.locator("main")).to_contain_text("the program of worker:0 started")
    page.get_by_role("link", name="Configuration").first.click()
    expect(page.locator("main")).to_contain_text("roles.worker.command")
    log = page.goto((folder / "logs" / "worker-0" / "1.txt").as_uri())
    assert log is not None
    assert "step 2" in page.locator("body").inner_text()
    assert broken_links(folder) == []


def broken_links(folder: Path) -> list[str]:
    """Return the links of exported pages that lead to no file."""
    return [
        f"{page}: {address}"
        for page in folder.rglob("*.html")
        for address in re.findall(r'(?:href|src)="([^"#]+)', page.read_text())
        if ":" not in address.partition("/")[0] and not (page.parent / unquote(address)).is_file()
    ]


class FailingJobs:
    """The jobs of a place that cannot be listed while `failure` is there."""

    trouble = ""

    def __init__(self) -> None:
        self.failure: Exception | None = None

    async def present(self) -> Sequence[Headline]:
        if self.failure is not None:
            raise self.failure
        return [Headline("digits-abcdef")]

    async def changed(self, version: int, within: float) -> int:
        await asyncio.sleep(0.1)  # noqa: TID251  the pace of changes, which nobody waits for
        return version + 1


def test_an_open_page_says_why_it_gets_no_news(page: Page, complaints: list[str]) -> None:
    failing = FailingJobs()
    with serving(jobs_page(failing, lambda request: Reader(), "here")) as server:
        page.goto(f"http://127.0.0.1:{server.port}/")
        expect(page.locator("#offline")).to_be_hidden()
        failing.failure = RuntimeError("its disk is away")
        expect(page.locator("#offline")).to_contain_text("its disk is away; last heard")
        failing.failure = None
        expect(page.locator("#offline")).to_be_hidden()
        page.goto("about:blank")
    complaints.clear()
