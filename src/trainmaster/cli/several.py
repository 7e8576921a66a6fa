"""Commands that take several jobs: a wrong name among them, or the trouble of a job, spoils no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from trainmaster.cli.options.given import JobName

if TYPE_CHECKING:
    from trainmaster.core.errors import TrainmasterError


class AnyJob(JobName):
    """A job as the user names it; the command resolves each name by itself, so that a wrong one spoils no other."""

    def convert(self, value: str, parameter: click.Parameter | None, ctx: click.Context | None) -> str:
        return value


def for_each(names: Iterable[str], act: Callable[[str], object]) -> list[TrainmasterError]:
    """Call `act` with the id of each job that is named; return the errors of those for which that failed."""
    from trainmaster.client.jobs.handles import resolve
    from trainmaster.core.errors import TrainmasterError

    errors = []
    for name in dict.fromkeys(names):
        try:
            act(resolve(name))
        except TrainmasterError as error:
            errors.append(error)
    return errors


def raise_first(errors: Sequence[TrainmasterError]) -> None:
    """Raise the first error of several, after saying the others."""
    for error in errors[1:]:
        click.echo(f"error: {error}", err=True)
    if errors:
        raise errors[0]
