"""`tm cluster env`: exports for a shell."""

from __future__ import annotations

import click

from trainmaster.cli.options.cluster_given import clusters_of, kind_argument, name_option
from trainmaster.cli.options.given import json_option, print_json, wants_json


@click.command("env")
@kind_argument
@name_option
@json_option
def command(kind: str, name: str | None) -> None:
    """Print what a shell needs to use the cluster: eval "$(tm cluster env kubernetes)"."""
    import shlex

    variables = clusters_of(kind).find(name or kind).environ
    if wants_json():
        print_json(variables)
        return
    for variable, value in variables.items():
        click.echo(f"export {variable}={shlex.quote(value)}")
