"""`tm explain`: where each value of a job comes from."""

from __future__ import annotations

import os
from typing import Any

import click

from trainmaster.cli.options.describing import DescribesJob, described, job_options
from trainmaster.cli.options.given import json_option, print_json, wants_json


class ExplainsNames(DescribesJob):
    """`tm explain`. The name of an error is explained before any settings are read: they may be what is wrong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names = [word.strip("[]") for word in args if not word.startswith("-")]
        if len(names) == 1 and "--" not in args and not os.path.exists(names[0]) and not ctx.resilient_parsing:
            from trainmaster.words.explained import explained, explained_names

            if text := explained(names[0]):
                if "--json" in args or wants_json():
                    print_json({"name": names[0], "text": text})
                else:
                    click.echo(text)
                ctx.exit()
            from trainmaster.core.nearest import meant

            if near := meant(names[0], explained_names()):
                raise click.UsageError(
                    f"there is no error {names[0]}, and no file of this name; did you mean {near}?", ctx
                )
        return super().parse_args(ctx, args)


@click.command("explain", cls=ExplainsNames)
@job_options
@click.option("-a", "--all", "everything", is_flag=True, help="built-in values too")
@json_option
def command(file: str | None, engine: str, everything: bool, **options: Any) -> None:
    """Show every value of a job and where it comes from; what stands lower here wins.

    \b
    built-in
    site file    /etc/trainmaster/config.yaml, or $TRAINMASTER_SITE
    user file    ~/.config/trainmaster/config.yaml
    environment  TRAINMASTER_SET_TIMEOUTS__STALL=10m, for one
    job file
    flags

    `defaults` of the first three hold for every role that says nothing else.

    With the name of an error, as in [no-such-job], or the reason of an end, say what it means and what to do.
    """
    import attrs

    from trainmaster.client.spec.describe import left_out_lines
    from trainmaster.client.spec.settings import explain
    from trainmaster.client.submit.preview import thread_lines, thread_shares
    from trainmaster.words.text import columns

    description = described(file, engine, options)
    rows = [row for row in explain(description.job, description.origins) if everything or row.origin != "built-in"]
    if wants_json():
        print_json([attrs.asdict(row) for row in rows])
        return
    for line in columns([(row.key, row.value, row.origin) for row in rows], ("KEY", "VALUE", "FROM")):
        click.echo(line)
    for line in left_out_lines(description.job, description.engine):
        click.echo(line)
    for line in thread_lines(thread_shares(description.job, description.engine)):
        click.echo(line)
