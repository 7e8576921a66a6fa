"""`tm kill`: end a job."""

from __future__ import annotations

import click

from trainmaster.cli.given import JobName, json_option, print_json, telling, wants_json
from trainmaster.core.errors import TrainmasterError


@click.command("kill")
@click.argument("jobs", nargs=-1, required=True, type=JobName(), metavar="JOB...")
@click.option("--why", default="", help="kept in the job's events")
@click.option("--no-wait", is_flag=True, help="return before it has ended")
@click.option("--force", is_flag=True, help="end its processes first, for a job whose master does not answer")
@json_option
def command(jobs: tuple[str, ...], why: str, no_wait: bool, force: bool) -> None:
    """End jobs: their programs are asked to stop, then killed; what their finished tasks wrote is kept."""
    from trainmaster.client.actions import kill as ask
    from trainmaster.client.follow import wait_for_end
    from trainmaster.client.sweep import resume

    asked, failed = [], []
    for job in jobs:  # none waits for another one's end, nor stays for another's trouble
        try:
            asked.append((job, ask(job, why, force)))
        except TrainmasterError as error:
            failed.append(error)
    for job, ended in asked:
        status = ended or (None if no_wait else wait_for_end(job, resume=resume, tell=telling(job)))
        if wants_json():
            print_json(status or {"job": job, "state": "ending"})
        elif ended:
            click.echo(f"{job} had ended: {ended['state']}")
        else:
            click.echo(f"{job} is ending" if status is None else f"{job} {status['state']}")
    for another in failed[1:]:
        click.echo(f"error: {another}", err=True)
    if failed:
        raise failed[0]
