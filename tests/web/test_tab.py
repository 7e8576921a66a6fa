"""The ground of the other tests here: a tab tells whatever is wrong with its page."""

from __future__ import annotations

from pathlib import Path

import browser
import pytest

pytestmark = pytest.mark.xdist_group("browser")

PAGE = """<!doctype html><html lang=en><head><meta charset=utf-8><title>a page</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'self'"></head><body><main><h1>a page</h1>{}</main></body></html>"""


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", ""),
        ("<script src=throws.js></script>", "thrown"),
        ("<script src=shouts.js></script>", "shouted"),
        ("<script>1</script>", "violates the following Content Security Policy"),
        ("<img src=none.png alt=''>", "none.png: 404"),
        ("<script src=asks.js></script>", "a dialog: asked"),
    ],
)
def test_complaints(site: str, tmp_path: Path, page, complaints: list[str], content: str, complaint: str) -> None:
    (tmp_path / "throws.js").write_text("throw new Error('thrown')")
    (tmp_path / "shouts.js").write_text("console.error('shouted')")
    (tmp_path / "asks.js").write_text("alert('asked')")
    (tmp_path / "page.html").write_text(PAGE.format(content))
    (tmp_path / "favicon.ico").write_bytes(b"")
    page.goto(f"{site}/page.html")
    assert complaint in "\n".join(complaints)
    assert bool(complaints) == bool(complaint)
    complaints.clear()


def test_axe_names_element_and_mend(site: str, tmp_path: Path, page) -> None:
    (tmp_path / "favicon.ico").write_bytes(b"")
    (tmp_path / "page.html").write_text(PAGE.format("<button></button>"))
    page.goto(f"{site}/page.html")
    (violation,) = browser.violations(page)
    assert violation.startswith("button-name: <button></button>")
    assert "Fix any of the following" in violation
