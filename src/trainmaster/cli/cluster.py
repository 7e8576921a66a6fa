"""`tm cluster`: clusters on this machine, and what a cluster has. A subcommand is a file, loaded when it is called."""

from __future__ import annotations

from importlib import import_module

import click

from trainmaster.cli.given import json_option

SUBCOMMANDS = {
    "show": "nodes, queues and what is free, of any engine",
    "up": "start a cluster on this machine, to try an engine",
    "down": "end a cluster of this machine",
    "status": "the daemons of this machine's clusters",
    "grants": "the account that masters on Kubernetes need, as YAML",
    "env": "what a shell needs to use a cluster of this machine",
}


class Subcommands(click.Group):
    """Out of the table; each is `command` in a file of its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in SUBCOMMANDS:
            return None
        found: click.Command = import_module(f"trainmaster.cli.cluster_{name}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


@click.group("cluster", cls=Subcommands)
@json_option
def command() -> None:
    """What a cluster has; and clusters on this machine, to try an engine without one of one's own."""
