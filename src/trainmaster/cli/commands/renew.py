"""`tm renew`: newer tokens for a job on a secure cluster."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import json_option, print_json, wants_json
from trainmaster.cli.several import AnyJob, for_each, raise_first


@click.command("renew")
@click.argument("jobs", nargs=-1, required=True, type=AnyJob(), metavar="JOB...")
@json_option
def command(jobs: tuple[str, ...]) -> None:
    """Bring jobs on a secure cluster newer tokens, by your ticket, before those that they have end."""
    import time

    from trainmaster.client.jobs.renewal import renew
    from trainmaster.client.jobs.tokens import words

    def renew_one(job: str) -> None:
        tokens = renew(job)
        if wants_json():
            print_json({"job": job, **tokens})
        elif tokens["brought"]:
            click.echo(f"{job} has newer tokens, {words(tokens, time.time())}")
        else:
            click.echo(f"{job} keeps its tokens, {words(tokens, time.time())}: newer ones would end earlier")

    raise_first(for_each(jobs, renew_one))
