"""Watching a job to its end, for `run`, `attach` and `retry`, and the exit status that the end gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from trainmaster.cli.exits import exit_status
from trainmaster.cli.options.given import print_json, wants_json
from trainmaster.cli.options.showing import output_choice

if TYPE_CHECKING:
    from trainmaster.client.watch.leaving import Begun
    from trainmaster.client.watch.printing import Choice

Items = Iterator[dict[str, Any]]


def watch_to_end(
    begun: Begun, logs: bool = True, tail: int | None = None, choice: Choice | None = None, exits_as: str = "job",
    retell: Callable[[Items], Items] = lambda items: items,
) -> None:  # fmt: skip
    """Show the job that has begun until it ends and exit with its status. `retell` changes the words of what is shown."""
    from trainmaster.client.jobs.past import Past
    from trainmaster.client.jobs.places import site_of
    from trainmaster.client.jobs.sweep import resume
    from trainmaster.client.watch.follow import follow

    job = begun.job
    choice = choice or output_choice(Past(job).described)
    items = follow(job, logs=logs and not choice.quiet, tail=tail, resume=resume)
    if "application" in site_of(job):  # it is on a cluster
        from trainmaster.client.jobs.renewal import renewing
        from trainmaster.client.submit.carried import bringing

        items = bringing(job, renewing(job, items))
    with begun.shown_to_end(retell(items)) as shown:
        status = _print_items(shown, choice) if wants_json() else _watch(job, shown, choice)
    raise click.exceptions.Exit(exit_status(status, exits_as))


def _watch(job: str, items: Items, choice: Choice) -> dict[str, Any]:
    from trainmaster.client.watch.view import watch

    return watch(job, items, choice=choice)


def _print_items(items: Items, choice: Choice) -> dict[str, Any]:
    from trainmaster.client.watch.logs import for_people

    status: dict[str, Any] = {}
    for item in items:
        piece = item.get("log")
        if piece is not None and not choice.shows(piece["task"]):
            continue
        if item.get("lost", 1.0) >= 1.0:  # of a master that is only about to answer there is nothing to say
            print_json(item if piece is None else {"log": for_people(piece)})
        status = item.get("end", status)
    return status
