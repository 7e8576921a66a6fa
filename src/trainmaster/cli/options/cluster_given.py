"""The subcommands of `tm cluster` share these: the kind of cluster, its name, sizes, times and pairs written NAME=VALUE."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

KINDS = ("hadoop", "kubernetes", "spark")

kind_argument = click.argument("kind", type=click.Choice(KINDS), default="hadoop", metavar=f"[{'|'.join(KINDS)}]")
any_kind_argument = click.argument("kind", type=click.Choice(KINDS), required=False, metavar=f"[{'|'.join(KINDS)}]")
name_option = click.option("--name", help="which one, where several are side by side  [default: its kind's name]")


def clusters_of(kind: str) -> Any:
    """Return the module of a kind: `up_or_found`, `find`, `clusters`, `down`, `Settings`."""
    return import_module(f"trainmaster.clusters.{kind}")


class Pair(click.ParamType[tuple[str, str]]):
    """NAME=VALUE; where `number` names a type, the value as that."""

    def __init__(self, name: str, number: type[int] | type[float] | None = None) -> None:
        self.name, self._number = name, number

    def convert(self, value: Any, parameter: click.Parameter | None, ctx: click.Context | None) -> Any:
        name, _, rest = str(value).partition("=")
        try:
            if name and rest:
                return name, self._number(rest) if self._number else rest
        except ValueError:
            pass
        return self.fail(f"{value!r} is not {self.name}", parameter, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.name


class Size(click.ParamType[int]):
    """A size as people write it, in MiB."""

    name = "SIZE"

    def convert(self, value: Any, parameter: click.Parameter | None, ctx: click.Context | None) -> int:
        from trainmaster.core.spec.quantities import parse_bytes

        try:
            return parse_bytes(value) >> 20 if isinstance(value, str) else int(value)
        except ValueError as error:
            return self.fail(str(error), parameter, ctx)


class Time(click.ParamType[float]):
    """A duration as people write it, in seconds."""

    name = "TIME"

    def convert(self, value: Any, parameter: click.Parameter | None, ctx: click.Context | None) -> float:
        from trainmaster.core.spec.quantities import parse_seconds

        try:
            return (parse_seconds(value) or 0.0) if isinstance(value, str) else float(value)
        except ValueError as error:
            return self.fail(str(error), parameter, ctx)
