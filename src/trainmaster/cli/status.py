"""`tm status`: how a job is doing, or how it ended."""

from __future__ import annotations

import click

from trainmaster.cli.given import job_argument, json_option, print_json, wants_json


@click.command("status")
@job_argument
@json_option
def command(job: str) -> None:
    """How a job is doing, or how it ended."""
    import time

    from trainmaster.client.connect import Past
    from trainmaster.client.connect import status as told
    from trainmaster.client.sweep import sweep
    from trainmaster.client.text import ago, ended_lines, output_sizes, task_rows

    sweep()
    found = told(job)
    if wants_json():
        print_json(found)
        return
    if found["state"] in ("succeeded", "failed", "killed"):
        for line in ended_lines(found, output_sizes(Past(job).events())):
            click.echo(line)
    else:
        click.echo(
            f"{job} {found['state']}, submitted {ago(found['submitted'], time.time())}: {found['waiting'] or found['phase']}"
        )
    click.echo()
    for line in task_rows(found, time.time()):
        click.echo(line)
    for name, shards in found.get("shards", {}).items():
        click.echo(f"{name}: {_figures(shards)}")
    if (saved := found.get("checkpoint")) is not None:
        click.echo(f"checkpoint: set {saved['set']}")
    for save in found.get("saves", ()):
        late = f", {', '.join(save['left'])} still saving" if save.get("left") else ""
        click.echo(f"save {save['save']}: {len(save['tasks'])} tasks{late}")
    for task in found["tasks"]:
        if (trouble := task.get("trouble")) is not None:
            click.echo(f"{task['task']} goes on, but {trouble['what']}: {trouble.get('detail', '')}")


def _figures(shards: object) -> str:
    return ", ".join(f"{value:,} {name}" for name, value in shards.items()) if isinstance(shards, dict) else str(shards)
