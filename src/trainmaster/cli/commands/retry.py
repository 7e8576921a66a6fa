"""`tm retry`: submit a job again."""

from __future__ import annotations

import click

from trainmaster.cli.exits import detach_option, exit_status_option
from trainmaster.cli.options.given import job_argument, json_option, print_json, wants_json


@click.command("retry")
@job_argument
@click.option("--background", is_flag=True, help="print the new id and return")
@exit_status_option
@detach_option
@json_option
def command(job: str, background: bool, exits_as: str, detach: str | None) -> None:
    """Submit JOB again as it was, under a new id, and watch it: the same directory, secrets as they are set now.

    Ctrl-C and the other signals do what they do in `tm run`.
    """
    from trainmaster.cli.watching import watch_to_end
    from trainmaster.client.jobs.handles import handle_of
    from trainmaster.client.submit.submit import resubmit
    from trainmaster.client.watch.leaving import letting_go

    with letting_go("leave" if background else detach) as begun:
        new_job = resubmit(job, fork=True, announce=begun.note)
        if not background:
            click.echo(f"{job} again, as {new_job}", err=True)
            watch_to_end(begun, exits_as=exits_as)
        if wants_json():
            print_json({"job": new_job, "handle": str(handle_of(new_job))})
        else:
            click.echo(new_job)
