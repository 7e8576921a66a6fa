"""`tm logs`: what the programs printed."""

from __future__ import annotations

import click

from trainmaster.cli.options.completing import tasks
from trainmaster.cli.options.given import job_argument, json_option, print_json, wants_json


@click.command("logs")
@job_argument
@click.argument("task", required=False, shell_complete=tasks)
@click.option("-f", "--follow", is_flag=True, help="show what comes, too, until the job ends")
@click.option("--attempt", type=click.IntRange(1), help="this attempt; default: the latest")
@click.option("-n", "--tail", type=click.IntRange(0), help="only the last lines, this many")
@click.option("--progress", is_flag=True, help="lines by which a program reports its progress too")
@json_option
def command(job: str, task: str | None, follow: bool, attempt: int | None, tail: int | None, progress: bool) -> None:
    """Show what the programs of JOB printed: of TASK (like worker:0), else of all, each line led by its task.

    TASK master is what the masters of JOB logged.
    """
    import sys
    from itertools import chain

    from trainmaster.client.jobs.past import Past, copied_tasks
    from trainmaster.client.watch.lines import last, without_progress
    from trainmaster.client.watch.logs import MASTER, for_people, lines_of, noted, pieces
    from trainmaster.client.watch.printing import Choice, Piped, Plain
    from trainmaster.log.output import exact
    from trainmaster.words.text import last_state

    seen: dict[str, tuple[int, int]] = {}
    present = () if tail is None else noted(pieces(job, task, attempt), seen)
    coming = pieces(job, task, attempt, follow, seen) if follow or tail is None else ()
    if wants_json():
        for piece in chain(last(present, tail or 0), coming):
            print_json(for_people(piece))
    elif task is None or tail is not None:
        choice = Choice(prefix=task is None, copied=copied_tasks(Past(job).described))
        terminal = sys.stdout.isatty()
        shown = Plain(sys.stdout, sys.stderr, choice) if terminal else Piped(sys.stdout, sys.stderr, choice, last_state)
        for block in lines_of(present, coming, tail, follow, progress, shown.longest):
            shown.lines([block])
    else:
        silent = True
        for piece in coming if progress else without_progress(coming):
            silent = silent and not piece["data"]
            click.echo(exact(piece["data"]), nl=False)
        if task == MASTER and silent:
            click.echo(f"no master of {job} had anything to complain of; what it did: tm events {job}", err=True)
