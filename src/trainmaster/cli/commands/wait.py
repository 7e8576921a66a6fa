"""`tm wait`: wait for a job to end."""

from __future__ import annotations

import click

from trainmaster.cli.exits import exit_status, exit_status_option
from trainmaster.cli.options.given import job_argument, json_option, print_json, telling, wants_json


@click.command("wait")
@job_argument
@click.option("--timeout", metavar="DURATION", help="wait no longer than this, like 10m; exit status 4 then")
@exit_status_option
@json_option
def command(job: str, timeout: str | None, exits_as: str) -> None:
    """Wait for JOB to end; exit with its status."""
    from trainmaster.client.jobs.past import Past
    from trainmaster.client.jobs.sweep import resume
    from trainmaster.client.submit.carried import bring_outputs
    from trainmaster.client.watch.connect import status as present
    from trainmaster.client.watch.follow import wait_for_end
    from trainmaster.core.spec.quantities import parse_seconds
    from trainmaster.words.text import ended_lines, output_sizes

    try:
        limit = parse_seconds(timeout) if timeout else None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--timeout") from error
    status = wait_for_end(job, limit, resume, telling(job))
    if status is None:
        click.echo(f"{job} has not ended after {timeout}", err=True)
        if wants_json():
            print_json(present(job))
        raise click.exceptions.Exit(4)
    status = bring_outputs(job, status)
    if wants_json():
        print_json(status)
    else:
        for line in ended_lines(status, output_sizes(Past(job).events())):
            click.echo(line)
    raise click.exceptions.Exit(exit_status(status, exits_as))
