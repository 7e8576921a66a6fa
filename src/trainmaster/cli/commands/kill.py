"""`tm kill`: end a job, or the present attempt of a task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from trainmaster.cli.options.given import json_option, print_json, telling, wants_json
from trainmaster.cli.several import AnyJob, for_each, raise_first

_TASK = re.compile(r"[\w.-]+:\d+")


@click.command("kill")
@click.argument("jobs", nargs=-1, required=True, type=AnyJob(), metavar="JOB... | JOB TASK...")
@click.option("--why", default="", help="kept in the job's events")
@click.option(
    "--signal",
    "name",
    metavar="NAME",
    help="send this to the programs of the tasks, and end nothing: USR1, SIGTERM, 10",
)
@click.option("--no-wait", is_flag=True, help="return before it has ended")
@click.option("--force", is_flag=True, help="end its processes first, for a job whose master does not answer")
@json_option
def command(jobs: tuple[str, ...], why: str, name: str | None, no_wait: bool, force: bool) -> None:
    """End jobs: their programs are asked to stop, then killed; what their finished tasks wrote is kept.

    Jobs that exist are ended though another name is wrong; that is an error, after all of them. With tasks, like worker:1, the present
    attempts of these alone are ended, and their containers given back; they restart by the rules of their role. With --signal, the
    processes that do the work of their programs get this signal: shells pass it on.
    """
    tasks = [word for word in jobs if _TASK.fullmatch(word)]
    if tasks or name is not None:
        _act_on_tasks([word for word in jobs if word not in tasks], tasks, why, name)
        return
    from trainmaster.client.jobs.actions import kill as ask
    from trainmaster.client.jobs.sweep import resume
    from trainmaster.client.watch.follow import wait_for_end

    statuses: dict[str, Any] = {}  # of jobs that had ended
    errors = for_each(
        jobs, lambda job: statuses.update({job: ask(job, why, force)})
    )  # none waits for another one's end
    for job, ended in statuses.items():
        status = ended or (None if no_wait else wait_for_end(job, resume=resume, tell=telling(job)))
        if wants_json():
            print_json(status or {"job": job, "state": "ending"})
        elif ended:
            click.echo(f"{job} had ended: {ended['state']}")
        else:
            click.echo(f"{job} is ending" if status is None else f"{job} {status['state']}")
    raise_first(errors)


def _act_on_tasks(jobs: Sequence[str], tasks: Sequence[str], why: str, name: str | None) -> None:
    from trainmaster.client.jobs.actions import kill_task, signal
    from trainmaster.client.jobs.handles import resolve

    if len(jobs) != 1 or not tasks:
        example = " ".join([*(tasks or ["worker:0"]), *([] if name is None else ["--signal", name])])
        raise click.UsageError(f"name one job and the tasks that are meant: tm kill JOB {example}")
    job = resolve(jobs[0])
    for task in tasks:
        kill_task(job, task, why) if name is None else signal(job, task, name)
        if not wants_json():
            click.echo(f"{task} of {job} is ending" if name is None else f"{task} of {job} gets {name}")
    if wants_json():
        print_json({"job": job, "state": "running", "ending" if name is None else "signalled": list(tasks)})
