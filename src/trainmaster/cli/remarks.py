"""Say what is doubtful about a described job, where a key that is wrong was written, and what submitting would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from trainmaster.cli.options.given import print_json, wants_json

DEFAULT = "'s default"  # ends the origin of a value that another system's command line has by itself
Spoken = Callable[[str, str], str]  # text, key -> the text in another system's words


def unchanged(text: str, key: str) -> str:
    return text


@contextmanager
def naming_origins(described: Any) -> Iterator[None]:
    """Have an error about a key name the line, or the flag, that sets the key."""
    from trainmaster.core.errors import BadInput

    try:
        yield
    except BadInput as error:
        key = error.place.partition(":")[0]
        path = tuple(key.split("."))
        origin = next(
            (described.origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in described.origins), ""
        )
        if origin and not error.place.endswith(")"):
            error.place += f"   ({origin})"
        raise


def warn(described: Any, spoken: Spoken = unchanged) -> None:
    """Print the notes and warnings about a described job on stderr. `spoken(text, key)`: a text in another system's words; "" for none."""
    from trainmaster.client.spec.describe import job_notes, job_warnings

    for text in job_notes(described.job, described.engine):
        if words := spoken(text, ""):
            note(words)
    for text in job_warnings(described.job, described.engine, described.origins):
        role = text.partition(" ")[2].partition(" ")[0] if text.startswith("role ") else ""
        if words := spoken(text, f"roles.{role}" if role else ""):
            _print(words)


def warner(described: Any, spoken: Spoken = unchanged) -> Callable[[str, str], None]:
    """Return a function that prints a warning about a key of the described job, where somebody wrote it; the flag that did leads it."""

    def print_warning(text: str, key: str) -> None:
        origin = described.origins.get(tuple(key.split(".")), "")
        if not origin.endswith(DEFAULT):
            name = origin.removeprefix("flag ") if origin.startswith("flag ") else key
            _print((f"{name}: " if name else "") + spoken(text, key))

    return print_warning


def note(text: str) -> None:
    """Print on stderr what needs no action."""
    click.echo(click.style("note: ", fg="cyan") + text, err=True)


def _print(text: str) -> None:
    """Print a warning; on a terminal in lines of its width."""
    import sys

    if sys.stderr.isatty():
        text = click.wrap_text(f"warning: {text}", _width() - 1, subsequent_indent="  ").removeprefix("warning: ")
    click.echo(click.style("warning: ", fg="yellow") + text, err=True)


def _width() -> int:
    import shutil

    return max(40, shutil.get_terminal_size().columns)


def show(description: Any, everything: bool) -> None:
    """Show what would be done."""
    from trainmaster.client.submit.preview import lines, preview

    with naming_origins(description):
        plan = preview(description.job, description.base, description.engine)
    if wants_json():
        print_json(plan)
        return
    warn(description)
    for line in lines(plan, everything):
        click.echo(line)
