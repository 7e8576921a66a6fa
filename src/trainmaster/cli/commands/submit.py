"""`tm submit`: start a job and return."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.options.describing import DescribesJob, described, job_options
from trainmaster.cli.options.given import json_option, print_json, wants_json
from trainmaster.cli.starting import say_submitted, start

DIALECTS = ("--xlearning", "--submarine")
_WORDS = "trainmaster.words"


class Submits(DescribesJob):
    """A command that takes another system's words after the flag of that system."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        cut = next((place for place, word in enumerate(args[:end]) if word in DIALECTS), None)
        if cut is None:
            return super().parse_args(ctx, args)
        ctx.meta[_WORDS] = args[cut + 1 :]
        return super().parse_args(ctx, args[: cut + 1])


@click.command("submit", cls=Submits)
@job_options
@click.option("--dry-run", is_flag=True, help="check it and show what would be asked for; nothing is started")
@click.option(
    "--idempotency-key", default="", metavar="KEY", help="a job submitted before under this key is returned instead"
)
@click.option("--xlearning", is_flag=True, help="the rest is a command line of XLearning's xl-submit")
@click.option("--submarine", is_flag=True, help="the rest is a command line of Submarine: job run, job show, job kill")
@json_option
def command(
    file: str | None, engine: str, dry_run: bool, idempotency_key: str, xlearning: bool, submarine: bool, **options: Any
) -> None:
    """Start a job as `tm run` does, print its id and return."""
    if xlearning or submarine:
        from trainmaster.cli.dialects import submit_as

        ctx = click.get_current_context()
        if file or any(options.values()):
            raise click.UsageError(
                "only --engine, --dry-run and --idempotency-key go before another system's flags", ctx
            )
        is_engine_named = ctx.get_parameter_source("engine") != click.core.ParameterSource.DEFAULT
        submit_as(
            "xlearning" if xlearning else "submarine",
            ctx.meta[_WORDS],
            engine if is_engine_named else "",
            dry_run,
            idempotency_key,
        )
        return
    if dry_run:
        from trainmaster.cli.remarks import show

        show(described(file, engine, options), everything=False)
        return
    description = described(file, engine, options)
    from trainmaster.client.jobs.handles import handle_of
    from trainmaster.client.watch.leaving import letting_go

    with letting_go() as begun:
        start(description, idempotency_key, begun)
        if wants_json():
            print_json({"job": begun.job, "handle": str(handle_of(begun.job))})
            return
        say_submitted(begun.job)
