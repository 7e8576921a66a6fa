"""A command of commands: its table says which there are, and each is `command` in a file of its own, loaded when it is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import click

from trainmaster.words import colours


def _ask(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value:
        colours.option = {"always": True, "never": False}.get(value)
    ctx.color = colours.of_echo()


_color = click.Option(  # of every command, shown by the first alone
    ["--color"],
    type=click.Choice(["auto", "always", "never"]),
    is_eager=True,
    expose_value=False,
    hidden=True,
    callback=_ask,
)
color_option = click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), is_eager=True, expose_value=False, callback=_ask,
    help="whether words have colours, also given after a command; default: on terminals, without NO_COLOR",
)  # fmt: skip


class Subcommands(click.Group):
    """`table`: name -> what it does; `tm NAME ONE` is in the module `NAME.ONE`. `synonyms`: what else people type -> the name."""

    def __init__(
        self, *args: Any, table: Mapping[str, str], synonyms: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._table, self._synonyms = table, synonyms
        self._folder = f"{self.name}."

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._table:
            return None
        command: click.Command = import_module(f"trainmaster.cli.commands.{self._folder}{name}").command
        if _color not in command.params:
            command.params.append(_color)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._table:
            from trainmaster.cli.synonyms import COMMANDS

            synonyms = COMMANDS if self._synonyms is None else self._synonyms
            raise click.UsageError(f"there is no command {name!r}{suggestion(name, self._table, synonyms)}", ctx)
        return name, self.get_command(ctx, name), args[1:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._table.items()))


def suggestion(name: str, known: Iterable[str], synonyms: Mapping[str, str]) -> str:
    """Return "; did you mean X?" where an unknown name is like a known one, or is another system's name of it; else ""."""
    from trainmaster.core.nearest import meant

    names = set(known)
    near = meant(name, names, {other: ours for other, ours in synonyms.items() if ours.split()[0] in names})
    return f"; did you mean {near}?" if near else ""
