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
    figures_by_task = None if no_wait else saved(job, name)
    if wants_json():
        print_json({"save": name, **({} if figures_by_task is None else {"tasks": figures_by_task})})
    elif figures_by_task is None:
        click.echo(name)
    else:
        _print_figures(name, figures_by_task)
    if any("gave_up" in figures for figures in (figures_by_task or {}).values()):
        raise SystemExit(3)


def _print_figures(name: str, figures_by_task: dict[str, Any]) -> None:
    from trainmaster.core.spec.quantities import format_bytes, format_count

    for task, figures in figures_by_task.items():
        size = f"{format_count(figures['files'], 'file')}, {format_bytes(figures['bytes'])}"
        click.echo(f"{name} {task}: {figures.get('gave_up', size)}")
    if not figures_by_task:
        click.echo(f"{name}: no task had anything to save")
