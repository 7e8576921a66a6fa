"""`tm run`: start a job and watch it."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.describing import DescribesJob, described, job_options
from trainmaster.cli.given import json_option, print_json, wants_json
from trainmaster.cli.remarks import naming_origins, warn


@click.command("run", cls=DescribesJob)
@job_options
@click.option("--dry-run", is_flag=True, help="check it and show what would be asked for; nothing is started")
@click.option(
    "--idempotency-key", default="", metavar="KEY", help="a job submitted before under this key is watched instead"
)
@json_option
def command(file: str | None, engine: str, dry_run: bool, idempotency_key: str, **given: Any) -> None:
    """Start a job and watch it until it ends: from JOB.yaml, from flags and a command, or from both.

    \b
    tm run -n 2 --framework pytorch -- python train.py
    tm run job.yaml --set roles.worker.processes=2

    Ctrl-C stops watching; the job goes on. The exit status is the job's.
    """
    asked = described(file, engine, given)
    if dry_run:
        show(asked)
        return
    from trainmaster.cli.watching import watch_to_end
    from trainmaster.client.submit import submit

    with naming_origins(asked):
        job = submit(asked.job, base=asked.base, key=idempotency_key, fork=True, engine=asked.engine)
    warn(asked.job, asked.engine)
    watch_to_end(job)


def show(asked: Any) -> None:
    """What would be done."""
    from trainmaster.client.preview import lines, preview

    with naming_origins(asked):
        found = preview(asked.job, asked.base, asked.engine)
    if wants_json():
        print_json(found)
        return
    warn(asked.job, asked.engine)
    for line in lines(found):
        click.echo(line)
