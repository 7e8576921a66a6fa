"""`tm cluster`: clusters on this machine, and what a cluster has."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import json_option
from trainmaster.cli.subcommands import Subcommands
from trainmaster.cli.synonyms import OF_CLUSTER

SUBCOMMANDS = {
    "show": "nodes, queues and what is free, of any engine",
    "up": "start a cluster on this machine, to try an engine",
    "down": "end a cluster of this machine",
    "status": "the daemons of this machine's clusters",
    "grants": "the account that masters on Kubernetes need, as YAML",
    "env": "what a shell needs to use a cluster of this machine",
}


@click.group("cluster", cls=Subcommands, table=SUBCOMMANDS, synonyms=OF_CLUSTER)
@json_option
def command() -> None:
    """Show what a cluster has; run clusters on this machine, to try an engine without one of one's own."""
