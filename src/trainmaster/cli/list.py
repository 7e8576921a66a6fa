"""`tm list`: the jobs there are."""

from __future__ import annotations

import click

from trainmaster.cli.given import json_option, print_json, wants_json


@click.command("list")
@click.option("-n", "--number", type=click.IntRange(1), default=20, show_default=True, help="how many at most")
@click.option("-a", "--all", "everything", is_flag=True, help="all of them")
@click.option("--running", is_flag=True, help="those that have not ended")
@click.option(
    "--engine", metavar="NAME", default="", help="with those of its cluster that were submitted from other machines"
)
@json_option
def command(number: int, everything: bool, running: bool, engine: str) -> None:
    """The jobs of this machine, newest first."""
    import time

    import attrs

    from trainmaster.client.places import kept, state_dir
    from trainmaster.client.sweep import sweep
    from trainmaster.client.text import ago, columns
    from trainmaster.log.index import jobs
    from trainmaster.log.storage import LocalStorage

    if engine:
        from trainmaster.client.describe import check_engine
        from trainmaster.client.distant import adopt_all

        check_engine(engine)
        adopt_all(engine)
    with kept("read the jobs", state_dir()):
        sweep()
        found = [job for job in jobs(LocalStorage(state_dir())) if not (running and job.ended)]
    if not everything:
        found = found[:number]
    if wants_json():
        print_json([attrs.asdict(job) for job in found])
        return
    if not found:
        click.echo("no jobs" + (" are running" if running else " yet; start one: tm run --help"))
        return
    now = time.time()
    rows = [
        (
            job.id,
            job.state,
            ago(job.submitted, now),
            _took(job.submitted, job.ended or now),
            job.unreadable or (job.reason if job.reason != job.state else ""),
        )
        for job in found
    ]
    for line in columns(rows, ("JOB", "STATE", "SUBMITTED", "TOOK", "REASON")):
        click.echo(line)


def _took(begun: float | None, ended: float) -> str:
    from trainmaster.core.quantities import format_seconds

    return format_seconds(max(0.0, round(ended - begun, 1 if ended - begun < 10 else None))) if begun else ""
