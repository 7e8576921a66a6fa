"""Several commands share these options: `--json`, `--engine`, and the name of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from trainmaster.cli.options import completing

F = TypeVar("F", bound=Callable[..., Any])


def _remember(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().meta["json"] = True


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=_remember, help="print JSON, for programs"
)


def wants_json() -> bool:
    return bool(click.get_current_context().find_root().meta.get("json"))


def print_json(value: object) -> None:
    """Print one JSON value on a line, at once: somebody may be following."""
    import json

    click.echo(json.dumps(value, separators=(",", ":"), default=str))


def engine_option(built_in: str = "local", doc: str = "where it runs") -> Callable[[F], F]:
    """Return the option `--engine`. Without it, the engine is that of the settings, else `built_in`."""

    def chosen(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str:
        if value or ctx.resilient_parsing:
            return value or built_in
        from trainmaster.client.spec.settings import default_engine

        return default_engine(built_in)

    choice = (
        f"{doc}: local, yarn, kubernetes, or one that a package adds  [default: your settings' engine, else {built_in}]"
    )
    return click.option("--engine", metavar="NAME", callback=chosen, help=choice, shell_complete=completing.engines)


class JobName(click.ParamType[str]):
    """A job by its id, a beginning of it, or its handle; becomes the id."""

    name = "job"

    def convert(self, value: str, parameter: click.Parameter | None, ctx: click.Context | None) -> str:
        from trainmaster.client.jobs.handles import resolve

        return resolve(value)

    def shell_complete(self, ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from trainmaster.client.jobs.places import job_ids

        return [CompletionItem(job) for job in sorted(job_ids()) if job.startswith(incomplete)]


class Duration(click.ParamType[float]):
    """A time like 2d or 10m; becomes seconds."""

    name = "duration"

    def convert(self, value: str | float, parameter: click.Parameter | None, ctx: click.Context | None) -> float:
        from trainmaster.core.spec.quantities import parse_seconds

        try:
            seconds = parse_seconds(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), parameter, ctx)
        return self.fail("expected a duration, like 2d", parameter, ctx) if seconds is None else seconds


def job_argument(function: F) -> F:
    return click.argument("job", type=JobName(), metavar="JOB")(function)


def telling(job: str) -> Callable[[str], None]:
    """Return a function that says on stderr what a command waits for."""
    return lambda why: click.echo(f"{job}: {why}", err=True)
