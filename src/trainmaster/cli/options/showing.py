"""The options of `run` and `attach` about the output that they show."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from trainmaster.client.watch.printing import Choice
    from trainmaster.core.spec.job import Job

F = TypeVar("F", bound=Callable[..., Any])


def output_options(function: F) -> F:
    """Add the options about the output that is shown; they arrive as `shown`, for `output_choice`."""
    for option in (
        click.option("--tasks", metavar="TASK", multiple=True, help="show the output of this task or role alone; may be repeated"),
        click.option("--quiet", is_flag=True, help="show no output of the programs"),
        click.option("--timestamps", is_flag=True, help="lead each line by the time at which it came here"),
        click.option("--prefix/--no-prefix", default=None, help="lead lines by their task; default: except for one task on a pipe"),
    ):  # fmt: skip
        function = option(function)
    return function


def output_choice(
    job: Job, tasks: Collection[str] = (), quiet: bool = False, timestamps: bool = False, prefix: bool | None = None
) -> Choice:
    """Return the output to show of a job. Raises NotFound for a task that it does not have."""
    import sys

    from trainmaster.client.jobs.past import copied_tasks, task_names
    from trainmaster.client.watch.logs import check_task
    from trainmaster.client.watch.printing import Choice

    known = task_names(job)
    for name in tasks:
        if name not in job.roles:
            check_task("", name, known, roles_too=True)
    chosen = [task for task in known if not tasks or task in tasks or task.partition(":")[0] in tasks]
    if prefix is None:
        prefix = len(chosen) > 1 or sys.stdout.isatty()
    return Choice(chosen if tasks else (), quiet, timestamps, prefix, copied_tasks(job))
