"""`tm attach`: watch a job that runs."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.exits import exit_status_option, watching_detach_option
from trainmaster.cli.options.given import job_argument, json_option
from trainmaster.cli.options.showing import output_choice, output_options
from trainmaster.cli.watching import watch_to_end


@click.command("attach")
@job_argument
@click.option("--all-output", is_flag=True, help="show what was printed before too, from the beginning")
@output_options
@exit_status_option
@watching_detach_option
@json_option
def command(job: str, all_output: bool, exits_as: str, detach: str, **shown: Any) -> None:
    """Watch JOB until it ends; of a job that has ended, say how it ended.

    Ctrl-C stops watching; the job goes on, unless --detach says otherwise.
    """
    from trainmaster.client.jobs.past import Past
    from trainmaster.client.watch.connect import status
    from trainmaster.client.watch.leaving import letting_go
    from trainmaster.core.states import FINAL

    choice = output_choice(Past(job).described, **shown)
    ended = status(job)["state"] in FINAL
    with letting_go(detach) as begun:
        begun.note(job)
        watch_to_end(begun, all_output or not ended, None if all_output else 4096, choice, exits_as)
