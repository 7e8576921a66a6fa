"""Render templates. All text of a value is escaped, unless this package made it as `Markup`."""

from __future__ import annotations

import functools
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from trainmaster import __version__
from trainmaster.core.machine.events import END_OF_TIME
from trainmaster.core.spec.quantities import format_bytes, format_count, format_seconds

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"


@functools.cache
def environment() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(FOLDER / "templates"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    templates.filters |= {
        "bytes": format_bytes,
        "seconds": format_seconds,
        "clock": clock,
        "iso": iso,
        "domid": dom_id,
        "clean": shown_text,
    }
    templates.globals |= {"version": __version__, "count": format_count, "scripts": has_scripts()}
    return templates


def render(template: str, **values: Any) -> str:
    """Return a whole page, or a part of one, out of `templates`. A byte of a file's name that is not UTF-8 is shown by its number."""
    text: str = environment().get_template(template).render(values)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class Static(StaticFiles):
    """The files of the pages. Browsers keep them, and ask each time whether they are still the same."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC)

    async def get_response(self, path: str, scope: MutableMapping[str, Any]) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


def has_scripts() -> bool:
    """Tell whether the scripts of other projects are there, which `tools/pages` brings."""
    return (STATIC / "vendor" / "htmx.min.js").exists()


def clock(at: float | None) -> str:
    """Return a time in UTC, to the second; "" for one that no calendar has."""
    return _written("%Y-%m-%d %H:%M:%S UTC", at)


def iso(at: float | None) -> str:
    return _written("%Y-%m-%dT%H:%M:%SZ", at)


def _written(form: str, at: float | None) -> str:
    return time.strftime(form, time.gmtime(at)) if at is not None and 0 <= at < END_OF_TIME else ""


def dom_id(key: str) -> str:
    """Return a task's key as a part of an element's id."""
    return "".join(letter if letter.isalnum() else f"-{ord(letter):x}-" for letter in key)


def shown_text(text: str) -> str:
    """Return lines of a program without colours and cursor movements."""
    from trainmaster.words.text import clean

    return clean(text, colours=False)
