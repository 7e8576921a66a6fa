"""What tests in a browser have: one browser for all of them, tabs that fail their test for what the browser complains of, and jobs."""

from __future__ import annotations

import http.server
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import browser as chromium
import pytest

from trainmaster.core.machine.events import Event
from web import jobs, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

SCREENSHOTS = os.environ.get("TRAINMASTER_SCREENSHOTS", "")  # a folder that keeps them; without one none is taken

NewPage = Callable[..., "Page"]
Screenshot = Callable[["Page", str], None]
Served = Callable[[str], str]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect

    expect.set_options(timeout=90_000)
    with chromium.started() as started:
        yield started


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complained of so far in any tab of the test. A test whose job or server goes away takes out what is due to that."""
    return []


@pytest.fixture(scope="package")
def cookies() -> list[Any]:
    """The sessions of all servers so far; their cookies have names of their own."""
    return []


@pytest.fixture
def contexts() -> list[BrowserContext]:
    """The test's tabs."""
    return []


@pytest.fixture
def new_page(
    browser: Browser, complaints: list[str], contexts: list[BrowserContext], cookies: list[Any]
) -> Iterator[NewPage]:
    """Open a tab of its own, which has signed in: `new_page(color_scheme="dark", viewport={"width": 360, "height": 800})`."""

    def opened(**options: Any) -> Page:
        contexts.append(context := browser.new_context(**options))
        context.set_default_timeout(90_000)
        context.add_cookies(cookies)
        page = context.new_page()
        chromium.watch(page, complaints)
        return page

    try:
        yield opened
    finally:
        for context in contexts:
            context.close()
    assert complaints == []


@pytest.fixture
def page(new_page: NewPage) -> Page:
    return new_page()


@pytest.fixture
def screenshot(request: pytest.FixtureRequest) -> Screenshot:
    """Keep how a page looks, as `TEST-NAME.png` in the folder that TRAINMASTER_SCREENSHOTS names."""

    def taken(page: Page, name: str) -> None:
        if SCREENSHOTS:
            page.screenshot(path=Path(SCREENSHOTS) / f"{request.node.name}-{name}.png", full_page=True)

    return taken


@pytest.fixture
def served(cookies: list[Any], contexts: list[BrowserContext]) -> Iterator[Served]:
    """Serve the pages of a job, sign in, and return their address."""

    def address(job: str) -> str:
        server = servers.enter_context(serve.served(job))
        cookies.append(server.cookie)
        for context in contexts:
            context.add_cookies([server.cookie])
        return server.address

    with ExitStack() as servers:
        yield address


@pytest.fixture(scope="package")
def steady(tmp_path_factory: pytest.TempPathFactory, cookies: list[Any]) -> Iterator[str]:
    """The address of the pages of a job that stays at its second step, for tests that only read."""
    folder = tmp_path_factory.mktemp("steady")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as runtime:
        patch.setenv("TRAINMASTER_STATE_DIR", str(folder / "state"))
        patch.setenv("TRAINMASTER_RUNTIME_DIR", runtime)
        with jobs.by_hand(folder / "job") as job, serve.served(job.id) as server:
            job.go_on(2)
            job.until_status("step 2", lambda status: all(task.get("step") == 2 for task in status["tasks"]))
            cookies.append(server.cookie)
            yield server.address


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[jobs.ByHand]:
    """A running job of two workers, which do what the test says."""
    with jobs.by_hand(tmp_path / "job") as job:
        yield job


@pytest.fixture(scope="package")
def thousand_tasks() -> list[Event]:
    return jobs.thousand_tasks()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """Serve the test's directory, as another site does; return its address."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
