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
@click.option("--no-wait", is_flag=True, help="return before it has ended")
@click.option("--force", is_flag=True, help="end its processes first, for a job whose master does not answer")
@json_option
def command(jobs: tuple[str, ...], why: str, no_wait: bool, force: bool) -> None:
    """End jobs: their programs are asked to stop, then killed; what their finished tasks wrote is kept.

    Jobs that exist are ended though another name is wrong; that is an error, after all of them. With tasks, like worker:1, the present
    attempts of these alone are ended, and their containers given back; they restart by the rules of their role.
    """
    if tasks := [name for name in jobs if _TASK.fullmatch(name)]:
        _kill_tasks([name for name in jobs if name not in tasks], tasks, why)
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


def _kill_tasks(jobs: Sequence[str], tasks: Sequence[str], why: str) -> None:
    from trainmaster.client.jobs.actions import kill_task
    from trainmaster.client.jobs.handles import resolve

    if len(jobs) != 1:
        raise click.UsageError(
            f"name the one job whose {', '.join(tasks)} is to be ended: tm kill JOB {' '.join(tasks)}"
        )
    job = resolve(jobs[0])
    for task in tasks:
        kill_task(job, task, why)
        if not wants_json():
            click.echo(f"{task} of {job} is ending")
    if wants_json():
        print_json({"job": job, "state": "running", "ending": list(tasks)})
