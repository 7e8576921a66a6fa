"""`tm save`: save a job's outputs while it runs."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.options.given import job_argument, json_option, print_json, wants_json


@click.command("save")
@job_argument
@click.option("--no-wait", is_flag=True, help="return before it is saved")
@json_option
def command(job: str, no_wait: bool) -> None:
    """Save the outputs of JOB as they are now, under <url>/_saves/<time>/; only what changed is sent."""
    from trainmaster.client.jobs.actions import save as ask
    from trainmaster.client.jobs.actions import saved

    name = ask(job)
    found = None if no_wait else saved(job, name)
    if wants_json():
        print_json({"save": name, **({} if found is None else {"tasks": found})})
    elif found is None:
        click.echo(name)
    else:
        _tell(name, found)
    if any("gave_up" in figures for figures in (found or {}).values()):
        raise SystemExit(3)


def _tell(name: str, found: dict[str, Any]) -> None:
    from trainmaster.core.spec.quantities import format_bytes, format_count

    for task, figures in found.items():
        what = f"{format_count(figures['files'], 'file')}, {format_bytes(figures['bytes'])}"
        click.echo(f"{name} {task}: {figures.get('gave_up', what)}")
    if not found:
        click.echo(f"{name}: no task had anything to save")
