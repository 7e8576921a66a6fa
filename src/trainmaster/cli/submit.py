"""`tm submit`: start a job and return."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.describing import DescribesJob, described, job_options
from trainmaster.cli.given import json_option, print_json, wants_json
from trainmaster.cli.remarks import naming_origins, warn


@click.command("submit", cls=DescribesJob)
@job_options
@click.option("--dry-run", is_flag=True, help="check it and show what would be asked for; nothing is started")
@click.option(
    "--idempotency-key", default="", metavar="KEY", help="a job submitted before under this key is returned instead"
)
@json_option
def command(file: str | None, engine: str, dry_run: bool, idempotency_key: str, **given: Any) -> None:
    """Start a job as `tm run` does, print its id and return."""
    if dry_run:
        from trainmaster.cli.run import show

        show(described(file, engine, given))
        return
    asked = described(file, engine, given)
    from trainmaster.client.handles import here
    from trainmaster.client.submit import submit

    with naming_origins(asked):
        job = submit(asked.job, base=asked.base, key=idempotency_key, fork=True, engine=asked.engine)
    warn(asked.job)
    if wants_json():
        print_json({"job": job, "handle": str(here(job))})
        return
    click.echo(job)
    click.echo(f"watch it: tm attach {job}   its output: tm logs -f {job}   end it: tm kill {job}", err=True)
