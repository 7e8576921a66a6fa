"""A browser for tests: the system's Chromium, which Playwright drives; it never downloads one.

    pytestmark = pytest.mark.xdist_group("browser")  # one worker of a run has it

`tests/web/conftest.py` has the fixtures. A tab fails its test for whatever the browser complains of (`watch`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster import web
from trainmaster.core.errors import BadInput

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

STATIC = Path(web.__file__).parent / "pages" / "static"
VENDOR = STATIC / "vendor"
AXE = Path(__file__).parent.parent / ".cache" / "axe-core" / "axe.min.js"
PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")  # the first takes a fifth of the work of the others
ARGUMENTS = (
    "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")  # of axe


def chromium() -> str:
    """Return the path of the system's Chromium. Raises BadInput where there is none."""
    for name in PROGRAMS:
        if path := shutil.which(name):
            return path
    raise BadInput("there is no Chromium on the path", mend="apt-get install chromium", anchor="no-browser")


def check() -> None:
    """Raise BadInput where a part of what pages are tested with is missing."""
    chromium()
    for path in (VENDOR, AXE):
        if not path.exists():
            raise BadInput(
                f"there is no {path.name}, which npm brings",
                mend="make setup, with npm on the path",
                anchor="no-browser",
            )


@contextmanager
def started() -> Iterator[Browser]:
    """Have a browser. Until its end no loop of asyncio can run in this thread: Playwright has one there."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def watch(page: Page, complaints: list[str]) -> None:
    """Note whatever the browser complains of: an error on the console or in a script, a request that fails, a dialog.

    A request that the page itself gives up, as an event stream when the reader goes elsewhere, is no failure.
    """

    def requested(request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":
            complaints.append(f"{request.method} {request.url}: {request.failure}")

    def answered(response: Any) -> None:
        if response.status >= 400:
            complaints.append(f"{response.request.method} {response.url}: {response.status}")

    def opened(dialog: Any) -> None:
        complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", requested)
    page.on("response", answered)
    page.on("dialog", opened)


def evaluated(page: Page, expression: str) -> Any:
    """Return the value of an expression, or of its promise. The page's Content-Security-Policy does not apply to it."""
    session = page.context.new_cdp_session(page)
    try:
        reply = session.send(
            "Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True}
        )
    finally:
        session.detach()
    if "exceptionDetails" in reply:
        raise AssertionError(reply["exceptionDetails"])
    return reply["result"].get("value")


def violations(page: Page) -> list[str]:
    """Return what axe finds wrong with the page as it is, a line each: the rule, the element, and what to do."""
    if not evaluated(page, "typeof axe === 'object'"):
        evaluated(page, AXE.read_text() + ";0")
    options = json.dumps({"runOnly": RULES, "resultTypes": ["violations"]})
    return [
        f"{violation['id']}: {node['html'][:200]}\n    {node['failureSummary']}"
        for violation in evaluated(page, f"axe.run(document, {options})")["violations"]
        for node in violation["nodes"]
    ]
