"""`tm explain`: where each value of a job comes from."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.options.describing import DescribesJob, described, job_options
from trainmaster.cli.options.given import json_option, print_json, wants_json


@click.command("explain", cls=DescribesJob)
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
    import os

    import attrs

    from trainmaster.client.spec.describe import left_out_lines
    from trainmaster.client.spec.settings import explain
    from trainmaster.client.submit.preview import thread_lines, thread_shares
    from trainmaster.words.explained import explained
    from trainmaster.words.text import columns

    if file and not os.path.exists(file) and (text := explained(file)):
        print_json({"name": file, "text": text}) if wants_json() else click.echo(text)
        return
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
