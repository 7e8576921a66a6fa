"""What tests in a browser have: one browser for all of them, tabs that fail their test for what the browser complains of, and jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import browser as chromium
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

SCREENSHOTS = os.environ.get("TRAINMASTER_SCREENSHOTS", "")  # a folder that keeps them; without one none is taken

NewPage = Callable[..., "Page"]
Screenshot = Callable[["Page", str], None]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium.started() as started:
        yield started


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complained of so far in any tab of the test. A test whose job or server goes away takes out what is due to that."""
    return []


@pytest.fixture
def new_page(browser: Browser, complaints: list[str]) -> Iterator[NewPage]:
    """Open a tab of its own session: `new_page(color_scheme="dark", viewport={"width": 360, "height": 800})`."""
    contexts: list[BrowserContext] = []

    def opened(**options: Any) -> Page:
        contexts.append(context := browser.new_context(**options))
        context.set_default_timeout(30_000)
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
