"""`tm zoo`: directories of model files."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import json_option
from trainmaster.cli.subcommands import Subcommands

SUBCOMMANDS = {
    "init": "begin a zoo with one model, its test and a Containerfile",
    "build": "build an image with a zoo and its packages",
    "push": "push an image to where a cluster fetches it",
}


@click.group("zoo", cls=Subcommands, table=SUBCOMMANDS)
@json_option
def command() -> None:
    """Model zoos: directories of model files, for `tm train`, `tm evaluate` and `tm predict`."""
