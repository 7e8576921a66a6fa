"""`tm retry`: submit a job again."""

from __future__ import annotations

import click

from trainmaster.cli.given import job_argument, json_option, print_json, wants_json


@click.command("retry")
@job_argument
@click.option("--background", is_flag=True, help="print the new id and return")
@json_option
def command(job: str, background: bool) -> None:
    """Submit JOB again as it was, under a new id, and watch it: the same directory, secrets as they are set now."""
    from trainmaster.cli.watching import watch_to_end
    from trainmaster.client.handles import here
    from trainmaster.client.submit import again

    made = again(job, fork=True)
    if not background:
        click.echo(f"{job} again, as {made}", err=True)
        watch_to_end(made)
    if wants_json():
        print_json({"job": made, "handle": str(here(made))})
    else:
        click.echo(made)
