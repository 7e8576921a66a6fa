"""`tm logs`: what the programs printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

from trainmaster.cli.completing import tasks
from trainmaster.cli.given import job_argument, json_option, print_json, wants_json

Piece = dict[str, Any]


@click.command("logs")
@job_argument
@click.argument("task", required=False, shell_complete=tasks)
@click.option("-f", "--follow", is_flag=True, help="go on as it comes, until the job ends")
@click.option("--attempt", type=click.IntRange(1), help="this attempt; default: the latest")
@click.option("-n", "--tail", type=click.IntRange(0), help="only so many lines of the end")
@click.option("--progress", is_flag=True, help="lines by which a program reports its progress too")
@json_option
def command(job: str, task: str | None, follow: bool, attempt: int | None, tail: int | None, progress: bool) -> None:
    """What the programs of JOB printed: of TASK (like worker:0), else of all, each line led by its task.

    What the masters of JOB logged: of TASK master.
    """
    from itertools import chain

    from trainmaster.client.lines import last, without_progress
    from trainmaster.client.logs import MASTER, pieces

    seen: dict[str, tuple[int, int]] = {}
    there = () if tail is None else _noted(pieces(job, task, attempt), seen)
    coming = pieces(job, task, attempt, follow, seen) if follow or tail is None else ()
    if wants_json():
        for piece in chain(last(there, tail or 0), coming):
            print_json(piece)
    elif task is None or tail is not None:
        for name, line in _lines(there, coming, tail, follow, progress):
            click.echo(line if task else f"{name} {line}")
    else:
        silent = True
        for piece in coming if progress else without_progress(coming):
            silent = silent and not piece["data"]
            click.echo(piece["data"], nl=False)
        if task == MASTER and silent:
            click.echo(f"no master of {job} had anything to complain of; what it did: tm events {job}", err=True)


def _noted(found: Iterable[Piece], seen: dict[str, tuple[int, int]]) -> Iterator[Piece]:
    """The pieces; and in `seen` up to where."""
    for piece in found:
        seen[piece["task"]] = piece["attempt"], piece["next"]
        yield piece


def _lines(
    there: Iterable[Piece], coming: Iterable[Piece], tail: int | None, follow: bool, progress: bool
) -> Iterator[tuple[str, str]]:
    """The last lines of what is there, then what comes: what is not whole yet, only where nothing is to come."""
    from collections import deque

    from trainmaster.client.lines import REPORTER, Lines

    lines = Lines()

    def shown(found: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        return (line for line in found if progress or not line[1].startswith(REPORTER))

    kept = deque(shown(line for piece in there for line in lines.add(piece)), tail)
    if not follow:
        kept.extend(shown(lines.close()))
    yield from kept
    yield from shown(line for piece in coming for line in lines.add(piece))
    yield from shown(lines.close())
