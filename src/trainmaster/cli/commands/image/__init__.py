"""`tm image`: images for jobs on Kubernetes."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import json_option
from trainmaster.cli.subcommands import Subcommands

SUBCOMMANDS = {
    "build": "build an image with Python and what programs need, or one of our runtime",
    "load": "give an image to the nodes of a Kubernetes on this machine",
}


@click.group("image", cls=Subcommands, table=SUBCOMMANDS)
@json_option
def command() -> None:
    """Images for jobs on Kubernetes. One with a Python >= 3.11 is all that a job needs."""
