"""`tm logs`: what the programs printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from trainmaster.cli.completing import tasks
from trainmaster.cli.given import job_argument, json_option, print_json, wants_json


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
    from collections import deque

    from trainmaster.client.lines import Lines, without_progress
    from trainmaster.client.logs import MASTER, pieces

    found = pieces(job, task, attempt, follow)
    if wants_json():
        for piece in found:
            print_json(piece)
        return
    if not progress:
        found = without_progress(found)
    if task is not None and tail is None:
        silent = True
        for piece in found:
            silent = silent and not piece["data"]
            click.echo(piece["data"], nl=False)
        if task == MASTER and silent:
            click.echo(f"no master of {job} had anything to complain of; what it did: tm events {job}", err=True)
        return
    lines = Lines()
    told = _lines(found, lines)
    for name, line in told if tail is None else deque(told, tail):
        click.echo(line if task else f"{name} {line}")


def _lines(found: Iterator[dict[str, Any]], lines: Any) -> Iterator[tuple[str, str]]:
    for piece in found:
        yield from lines.add(piece)
    yield from lines.close()
