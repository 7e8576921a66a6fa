"""`tm doctor`: whether this machine is ready."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import json_option, print_json, wants_json

_MARKS = {"good": ("ok", "green"), "warning": ("--", "yellow"), "bad": ("NO", "red")}


@click.command("doctor")
@json_option
def command() -> None:
    """Look at what jobs need on this machine, and say what is in the way. Exit status 3 where no job can run."""
    import attrs

    from trainmaster.client.jobs.doctor import examined
    from trainmaster.engines.findings import BAD

    findings = list(examined())
    if wants_json():
        print_json([attrs.asdict(finding) for finding in findings])
    else:
        for finding in findings:
            mark, colour = _MARKS[finding.state]
            click.echo(f"{click.style(mark, fg=colour)}  {finding.check}: {finding.text}")
            for line in filter(None, (finding.place, finding.mend)):
                click.echo(f"    {line}")
    if any(finding.state == BAD for finding in findings):
        raise click.exceptions.Exit(3)
