"""`run`, `submit` and `explain` take a job file, flags out of the table, and a command after `--`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from trainmaster.cli.options import completing
from trainmaster.cli.options.given import engine_option
from trainmaster.client.spec.flags import FLAGS

_COMMAND = "trainmaster.command"
_OFFERS: dict[str, completing.Offer] = {
    "framework": completing.frameworks,
    "restart": completing.choice("group", "task", "never"),
    "checkpoint": completing.files,
    "storage": completing.files,
    "set": completing.keys,
}


class DescribesJob(click.Command):
    """A command whose arguments after `--` are a program, taken as they are."""

    takes_command = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[cut + 1 :]
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args[:cut])
        if rest and not ctx.resilient_parsing:
            words = [str(ctx.params["file"]), *rest]
            words.insert(words[0].endswith((".yaml", ".yml", ".json")), "--")  # behind the job file, where there is one
            raise click.UsageError(f"a command comes after --: {ctx.command_path} {' '.join(words)}", ctx)
        return rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Offer a file where nothing else is expected: for the program's arguments, or the program itself."""
        return super().shell_complete(ctx, incomplete) or completing.files(ctx, self.params[0], incomplete)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe a job, in the order of the table."""
    for flag in reversed(FLAGS):
        option = click.option(
            *flag.names,
            flag.dest,
            metavar=flag.metavar,
            help=flag.doc,
            multiple=flag.many,
            shell_complete=_OFFERS.get(flag.dest),
        )
        function = option(function)
    function = engine_option()(function)
    return click.argument("file", required=False, metavar="[JOB.yaml]", shell_complete=completing.files)(function)


def described(file: str | None, engine: str, options: dict[str, Any]) -> Any:
    """Return the job that the command line describes."""
    from trainmaster.client.spec.describe import describe

    return describe(file, options, click.get_current_context().meta[_COMMAND], engine)
