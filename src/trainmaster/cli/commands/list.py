"""`tm list`: the jobs there are."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import Duration, json_option, print_json, wants_json
from trainmaster.core.states import LISTED_STATES


@click.command("list")
@click.option("-n", "--number", type=click.IntRange(1), default=20, show_default=True, help="how many at most")
@click.option("-a", "--all", "everything", is_flag=True, help="all of them")
@click.option("--running", is_flag=True, help="those that have not ended")
@click.option(
    "--state",
    "states",
    type=click.Choice(tuple(LISTED_STATES)),
    multiple=True,
    help="those in this state; may be repeated",
)
@click.option("--name", metavar="PATTERN", help="those whose name or id is like this, as 'digits*'")
@click.option("--since", metavar="DURATION", type=Duration(), help="those submitted within this time, like 2d")
@click.option(
    "--engine",
    metavar="NAME",
    default="",
    help="with those of its cluster that were submitted from other machines  [default: your settings' engine]",
)
@json_option
def command(
    number: int, everything: bool, running: bool, states: tuple[str, ...], name: str | None, since: float | None, engine: str
) -> None:  # fmt: skip
    """List the jobs of this machine, newest first."""
    import time

    from trainmaster.client.jobs.listing import adopt_of, headlines, matches, plain
    from trainmaster.client.jobs.places import state_dir, storage_errors
    from trainmaster.client.jobs.sweep import sweep
    from trainmaster.words.text import ago, columns

    if note := adopt_of(engine):
        click.echo(note, err=True)
    with storage_errors("read the jobs", state_dir()):
        sweep()
    after = time.time() - since if since is not None else 0.0
    jobs = [job for job in headlines() if not (running and job.ended) and matches(job, states, name, after)]
    if not everything:
        jobs = jobs[:number]
    if wants_json():
        print_json([plain(job) for job in jobs])
        return
    if not jobs:
        is_filtered = running or states or name or since
        click.echo("no jobs" + (" are like that" if is_filtered else " yet; start one: tm run --help"))
        return
    now = time.time()
    rows = [
        (
            job.id,
            job.word,
            ago(job.submitted, now),
            "" if job.lost else _took(job.submitted, job.ended or now),
            f"last known: {job.state}; {job.unreadable}" if job.lost else job.why,
        )
        for job in jobs
    ]
    for line in columns(rows, ("JOB", "STATE", "SUBMITTED", "TOOK", "REASON")):
        click.echo(line)


def _took(begun: float | None, ended: float) -> str:
    from trainmaster.core.spec.quantities import format_seconds

    return format_seconds(max(0.0, round(ended - begun, 1 if ended - begun < 10 else None))) if begun else ""
