"""`tm dump`: show what programs do now."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import job_argument, json_option, print_json, wants_json


@click.command("dump")
@job_argument
@click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
@json_option
def command(job: str, tasks: tuple[str, ...]) -> None:
    """Write the stacks of all processes of TASKs, like worker:1, to their logs; the programs go on."""
    from trainmaster.client.jobs.actions import dump

    for task in tasks:
        dump(job, task)
        if not wants_json():
            click.echo(f"the stacks of {task} come in its log: tm logs {job} {task}")
    if wants_json():
        print_json({"job": job, "dumped": list(tasks)})
