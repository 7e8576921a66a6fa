"""`tm tensorboard`: TensorBoard over the event files of jobs, running or over."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import json_option, print_json, wants_json
from trainmaster.cli.several import AnyJob, for_each, raise_first


@click.command("tensorboard")
@click.argument("jobs", type=AnyJob(), nargs=-1, metavar="[JOB]...")
@click.option("--all", "every", is_flag=True, help="of all jobs that this machine knows")
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="6006, or the next that is free; 0: any")
@json_option
def command(jobs: tuple[str, ...], every: bool, port: int | None) -> None:
    """Show the event files of each JOB in the TensorBoard of this machine, until Ctrl-C.

    They are looked for in its outputs, at its checkpoint's path, and in the logs of its key `tensorboard`. Each job and task is a run.
    """
    import secrets
    import subprocess
    import sys

    from trainmaster.client import tensorboard
    from trainmaster.client.jobs.places import job_ids
    from trainmaster.interrupts import Interrupted, interrupting

    if every == bool(jobs):
        raise click.UsageError("name jobs, or --all", click.get_current_context())
    tensorboard.program()  # where there is none, that is said first
    runs: dict[str, str] = {}
    errors = for_each(sorted(job_ids()) if every else jobs, lambda job: runs.update(tensorboard.event_folders(job)))
    if errors and not every:
        raise_first(errors)
    for error in errors:  # one job that cannot be read keeps nobody from the others
        click.echo(f"warning: {error}", err=True)
    if not runs:
        raise tensorboard.no_event_files(_names(jobs))
    number, path = tensorboard.free_port(port), secrets.token_urlsafe()
    address = tensorboard.address(number, path)
    if wants_json():
        print_json({"address": address, "runs": runs})
    else:
        click.echo(address)
        for run, folder in runs.items():
            click.echo(f"  {run}: {folder}")
    sys.stdout.flush()
    try:
        with (
            interrupting(),
            tensorboard.launching(runs, number, path) as (arguments, environ),
            subprocess.Popen(arguments, env=environ, stdout=sys.stderr) as board,
        ):
            try:
                status = board.wait()
            finally:
                board.terminate()
    except Interrupted:  # the usual way to end it
        return
    if status:
        raise click.ClickException(f"TensorBoard ended with status {status}: it says why above")


def _names(jobs: tuple[str, ...]) -> str:
    if len(jobs) == 1:
        return jobs[0]
    return f"none of {f'these {len(jobs)}' if jobs else 'your'} jobs"
