"""`tm schema`: the JSON Schema of job files."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import json_option


@click.command("schema")
@json_option
def command() -> None:
    """Print the JSON Schema of job files, by which editors complete and check them.

    \b
    tm schema > job.schema.json
    # first line of job.yaml: # yaml-language-server: $schema=job.schema.json
    """
    import json

    from trainmaster.client.spec.schema import schema

    click.echo(json.dumps(schema(), indent=1))
