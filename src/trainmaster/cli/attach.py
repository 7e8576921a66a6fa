"""`tm attach`: watch a job that runs."""

from __future__ import annotations

import click

from trainmaster.cli.given import job_argument, json_option


@click.command("attach")
@job_argument
@click.option("--all-output", is_flag=True, help="show what was printed before too, from the beginning")
@json_option
def command(job: str, all_output: bool) -> None:
    """Watch JOB until it ends; of one that has ended, how. Ctrl-C stops watching; the job goes on."""
    from trainmaster.cli.watching import watch_to_end
    from trainmaster.client.connect import status
    from trainmaster.core.state import FINAL

    ended = status(job)["state"] in FINAL
    watch_to_end(job, logs=all_output or not ended, tail=None if all_output else 4096)
