"""`tm run`: start a job and watch it."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.exits import detach_option, exit_status_option
from trainmaster.cli.options.describing import DescribesJob, described, job_options
from trainmaster.cli.options.given import json_option
from trainmaster.cli.options.showing import output_choice, output_options
from trainmaster.cli.remarks import note, show
from trainmaster.cli.starting import start
from trainmaster.cli.watching import watch_to_end


@click.command("run", cls=DescribesJob)
@job_options
@click.option(
    "--dry-run",
    is_flag=True,
    help="check it and show it as a job file, with what would be asked for; nothing is started",
)
@click.option(
    "--all", "everything", is_flag=True, help="with --dry-run: all keys of the job, also those with their defaults"
)
@click.option(
    "--idempotency-key", default="", metavar="KEY", help="a job submitted before under this key is watched instead"
)
@click.option(
    "--stdin",
    metavar="TASK",
    help="the task that has this command's stdin, or none; default: a single task on this machine",
)
@output_options
@exit_status_option
@detach_option
@json_option
def command(
    file: str | None, engine: str, dry_run: bool, everything: bool, idempotency_key: str, tasks: tuple[str, ...], quiet: bool,
    timestamps: bool, prefix: bool | None, exits_as: str, detach: str | None, stdin: str | None, **options: Any,
) -> None:  # fmt: skip
    """Start a job and watch it until it ends: from JOB.yaml, from flags and a command, or from both.

    \b
    tm run --framework pytorch --processes 2 -- python train.py
    tm run job.yaml --set roles.worker.processes=2

    On this machine Ctrl-C and SIGTERM end the job, a second one at once. On a cluster the job goes on. Everywhere it goes on when the
    terminal or the output's pipe is closed, or at SIGQUIT. --detach says otherwise.
    """
    description = described(file, engine, options)
    if dry_run:
        show(description, everything)
        return
    from trainmaster.client.submit.stdin import chosen, unread_note
    from trainmaster.client.watch.leaving import letting_go

    choice = output_choice(description.job, tasks, quiet, timestamps, prefix)
    source = chosen(description.job, description.engine, stdin)
    prepare = source.prepare if source is not None else lambda job: None
    with letting_go(detach) as begun:
        start(description, idempotency_key, begun, prepare)
        if source is not None:
            source.begin()
            choice.stdin_task = source.task
        elif stdin is None and (text := unread_note(description.job, description.engine)):
            note(text)
        watch_to_end(begun, choice=choice, exits_as=exits_as)
