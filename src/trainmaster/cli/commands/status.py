"""`tm status`: how a job is doing, or how it ended."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import job_argument, json_option, print_json, wants_json


@click.command("status")
@job_argument
@json_option
def command(job: str) -> None:
    """Show how a job is doing, or how it ended."""
    import time

    from trainmaster.client.jobs.past import Past
    from trainmaster.client.jobs.places import site_of
    from trainmaster.client.jobs.sweep import sweep
    from trainmaster.client.watch.connect import status as status_of
    from trainmaster.core.spec.quantities import format_count
    from trainmaster.core.states import FINAL
    from trainmaster.words.text import ended_lines, loss_lines, output_sizes, shard_figures, standing, task_rows

    sweep()
    status = status_of(job)
    if wants_json():
        print_json(status)
        return
    if status["state"] in FINAL:
        for line in ended_lines(status, output_sizes(Past(job).events())):
            click.echo(line)
    else:
        click.echo(standing(status, time.time()))
        for line in loss_lines(status):
            click.echo(line)
    click.echo()
    for line in task_rows(status):
        click.echo(line)
    if link := site_of(job).get("link"):
        click.echo(f"page of its engine: {link}")
    for label, address in status.get("links", {}).items():
        click.echo(f"{label}: {address}")
    for name, shards in status.get("shards", {}).items():
        click.echo(f"{name}: {shard_figures(shards)}")
    for role, scaling in status.get("scaling", {}).items():
        click.echo(f"{role}: {scaling['words']}")
    for task in status["tasks"]:
        if (straggling := task.get("straggling")) is not None:
            click.echo(f"{task['task']} is much slower than its peers: {straggling['words']}")
    if tokens := status.get("tokens"):
        from trainmaster.client.jobs.tokens import words

        click.echo(f"tokens: {words(tokens, time.time())}")
    if (saved := status.get("checkpoint")) is not None:
        click.echo(f"checkpoint: set {saved['set']}")
    for save in status.get("saves", ()):
        late = f", {', '.join(save['left'])} still saving" if save.get("left") else ""
        if save["tasks"] or late:
            click.echo(f"save {save['save']}: {format_count(len(save['tasks']), 'task')}{late}")
        for task, figures in save["failed"].items():
            click.echo(f"save {save['save']} failed: {task}: {figures['gave_up']}")
    losses = {(loss["task"], loss["at"]) for loss in status.get("losses", ())}  # named above
    for task in status["tasks"]:
        if (trouble := task.get("trouble")) is not None and (task["task"], trouble["at"]) not in losses:
            goes = "went" if task["state"] in FINAL else "goes"
            click.echo(f"{task['task']} {goes} on, but {trouble['what']}: {trouble.get('detail', '')}")
