"""`tm elasticdl`: ElasticDL's command line, word for word."""

from __future__ import annotations

import click

from trainmaster.cli.models import model_command
from trainmaster.cli.options.given import json_option


@click.group("elasticdl")
@json_option
def command() -> None:
    """Take an ElasticDL command line word for word: tm elasticdl train ... for elasticdl train ..."""


for verb in ("train", "evaluate", "predict"):
    command.add_command(model_command(verb, is_theirs=True))
