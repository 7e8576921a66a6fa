"""`tm remove`: remove jobs that are over."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import json_option, print_json, wants_json
from trainmaster.cli.several import AnyJob, for_each, raise_first


@click.command("remove")
@click.argument("jobs", nargs=-1, required=True, type=AnyJob(), metavar="JOB...")
@click.option("--dry-run", is_flag=True, help="show what would go; remove nothing")
@click.option(
    "--here", "only_here", is_flag=True, help="from this machine alone: the job's cluster, or its storage, is gone"
)
@json_option
def command(jobs: tuple[str, ...], dry_run: bool, only_here: bool) -> None:
    """Remove jobs that are over: events, logs, checkpoints without a url, and what their cluster keeps of them.

    Inputs, outputs, and checkpoints that have a url stay. A job that runs is never removed.
    """
    from trainmaster.client.jobs.removal import forget, place_here, places, remove

    def remove_one(job: str) -> None:
        gone = [place_here(job)] if only_here else places(job)
        if not dry_run:
            (forget if only_here else remove)(job)
        if wants_json():
            print_json({"job": job, "removed": not dry_run, "places": gone})
        else:
            click.echo(f"{job} {'would be removed' if dry_run else 'is removed'}: {', '.join(gone)}")

    raise_first(for_each(jobs, remove_one))
