"""Pages of programs, opened from the page of their job in a browser: they work, and cannot reach ours."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import browser
import pytest
from conformance.engines import Submitted, python, role
from playwright.sync_api import Page, expect
from waiting import until

import trainmaster
from web import serve
from web.conftest import Screenshot, Served

pytestmark = pytest.mark.xdist_group("browser")

# A page that shows the cookies that came with the request, and a WebSocket that answers in capitals.
PROGRAM = """
    import html, http, os
    from websockets.datastructures import Headers
    from websockets.http11 import Response
    from websockets.sync.server import serve

    def page(connection, request):
        if request.path == "/talk":
            return None
        cookies = html.escape(str(request.headers.get_all("Cookie")))
        text = f"<!doctype html><title>a program</title><link rel=icon href=data:,><h1>{request.path}</h1><p>{cookies}"
        headers = Headers({"Content-Type": "text/html", "Set-Cookie": "mine=1; Domain=localhost"})
        return Response(200, "OK", headers, text.encode())

    def talk(connection):
        for text in connection:
            connection.send(text.upper())

    with serve(talk, "127.0.0.1", int(os.environ["TRAINMASTER_PORT_WEB"]), process_request=page) as server:
        server.serve_forever()
"""
TALK = """new Promise((done, fail) => {
    const line = new WebSocket(location.origin.replace("http", "ws") + "/talk");
    line.onopen = () => line.send("hello"); line.onmessage = event => done(event.data); line.onerror = () => fail("refused");
})"""
# The page of a program tries to read ours, to show it in a frame, to set a cookie for it, and to press its buttons.
READ = "fetch({url}, {{credentials: 'include'}}).then(answer => answer.text(), error => 'refused')"
FRAME = """new Promise(done => {{
    const frame = document.createElement("iframe");
    frame.onload = () => done(frame.contentDocument ? frame.contentDocument.body.innerText : "closed");
    frame.src = {url}; document.body.append(frame);
}})"""
COOKIE = "document.cookie = 'trainmaster-x=1; domain=localhost'; document.cookie = 'trainmaster-x=1; domain=127.0.0.1'; document.cookie"
PRESS = """{{
    const form = document.createElement("form");
    form.method = "POST"; form.action = {url}; document.body.append(form); form.submit();
}}"""

EVENTS = """
    import os, sys, time, types
    sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # it loads no TensorFlow, which would take 500 MiB
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    writer = EventFileWriter({logs!r})
    value = Summary.Value(tag="loss", simple_value=0.5)
    writer.add_event(Event(step=1, wall_time=time.time(), summary=Summary(value=[value])))
    writer.close()
    while not os.path.exists({go!r}):
        time.sleep(0.05)
"""


@contextmanager
def running(job: dict[str, Any]) -> Iterator[Submitted]:
    submitted = Submitted(trainmaster.submit({"files": [], **job}))
    try:
        yield submitted
    finally:
        submitted.run.kill("the test is over")
        submitted.end()


@pytest.fixture
def program() -> Iterator[Submitted]:
    with running(
        {
            "name": "talks",
            "roles": {"worker": role(python(PROGRAM), ports=["web"])},
            "links": {"My <b>page</b>/1": "worker:0:web/start"},
        }
    ) as job:
        job.until_status("its link is there", lambda status: status["links"])
        yield job


def test_a_programs_page_works_and_cannot_reach_ours(
    program: Submitted, served: Served, page: Page, complaints: list[str], screenshot: Screenshot
) -> None:
    address = served(program.id)
    page.goto(address)
    link = page.locator("#data a", has_text="My <b>page</b>/1")
    expect(link).to_have_count(1)
    screenshot(page, "link")
    expect(page.locator("#actions")).not_to_contain_text("TensorBoard")
    link.click()
    expect(page.locator("h1")).to_have_text("/start")
    place = urlsplit(page.url)
    assert (place.hostname or "").startswith("my-b-page-b-1-")
    assert (place.hostname or "").endswith(".localhost")
    assert place.port != urlsplit(address).port
    expect(page.locator("p")).to_have_text("[]")
    page.reload()
    expect(page.locator("p")).to_have_text("['mine=1']")
    assert browser.evaluated(page, TALK) == "HELLO"
    assert complaints == []
    ours = json.dumps(address)
    assert "trainmaster" not in browser.evaluated(page, COOKIE)
    assert browser.evaluated(page, READ.format(url=ours)) == "refused"
    assert browser.evaluated(page, FRAME.format(url=ours)) == "closed"
    assert [cookie for cookie in page.context.cookies() if cookie["name"] == "trainmaster-x"] == []
    bookmark = page.url
    browser.evaluated(page, PRESS.format(url=json.dumps(f"{address}actions/kill")))
    expect(page.locator("body")).to_contain_text("another site has sent this request")
    complaints.clear()
    assert program.status()["state"] == "running"
    page.goto(address)
    expect(page.locator("#head")).to_contain_text("running")
    page.goto(bookmark)
    expect(page.locator("h1")).to_have_text("/start")
    program.run.kill("enough")
    program.end()
    page.goto(address)
    expect(page.locator("#head")).to_contain_text("killed")  # the pages know
    complaints.clear()  # of the program's page, which was left
    page.goto(bookmark)
    expect(page.locator("body")).to_contain_text("does not run now")
    page.goto(f"{address}links/My%20page")
    expect(page.locator("main")).to_contain_text("no program of the job serves the page My page now")
    complaints.clear()


@pytest.mark.full
def test_tensorboard_of_a_job_that_runs_and_of_one_that_has_ended(
    page: Page, cookies: list[Any], complaints: list[str], tmp_path: Path, screenshot: Screenshot
) -> None:
    logs, go = tmp_path / "events", tmp_path / "go"
    workers = role(python(EVENTS.format(logs=str(logs / "first"), go=str(go))))
    board = {"logs": str(logs), "memory": "1GiB"}
    job = {"name": "board", "roles": {"worker": workers}, "tensorboard": board, "environment": {"path": sys.prefix}}
    with running(job) as submitted, serve.served(submitted.id) as server:
        cookies.append(server.cookie)
        page.context.add_cookies([server.cookie])
        submitted.until_line("at http://127.0.0.1", "tensorboard:0")
        page.goto(server.address)
        button = page.locator("#actions a", has_text="TensorBoard")
        button.click()
        shows_the_run(page, complaints, "first")
        screenshot(page, "running")
        origin = browser.evaluated(page, "location.origin")
        page.goto(server.address)
        expect(button).to_have_count(1)
        go.touch()
        expect(page.locator("#head")).to_contain_text("succeeded")
        expect(button).to_have_count(1)
        screenshot(page, "ended")
        page.set_default_timeout(180_000)
        button.click()
        shows_the_run(page, complaints, f"{submitted.id}/first")
        assert browser.evaluated(page, "location.origin") == origin
        screenshot(page, "board-of-the-ended")
        (child,) = boards_of(server.pid)
        page.goto("about:blank")
    until(lambda: not os.path.exists(f"/proc/{child}"))


def shows_the_run(page: Page, complaints: list[str], name: str) -> None:
    expect(page).to_have_title("TensorBoard")
    expect(page.locator("tb-webapp")).to_contain_text("loss", timeout=120_000)
    runs = browser.evaluated(page, "fetch('data/runs').then(answer => answer.json())")
    assert [run.removesuffix("/.") for run in runs] == [name]
    complaints.clear()  # TensorBoard's own


def boards_of(pid: int) -> list[int]:
    """Return the TensorBoards that a process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"tensorboard" in Path(f"/proc/{child}/cmdline").read_bytes()]
