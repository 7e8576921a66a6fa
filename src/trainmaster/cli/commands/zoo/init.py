"""`tm zoo init`: begin a model zoo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trainmaster.cli.options.completing import files
from trainmaster.cli.options.given import json_option, print_json, wants_json

DEFAULT = "points"


def _models(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from trainmaster.integrations.elasticdl.zoos import models

    return [name for name in models() if name.startswith(incomplete)]


@click.command("init")
@click.argument("folder", required=False, default=".", metavar="[DIR]", shell_complete=files)
@click.option(
    "--model",
    default=DEFAULT,
    show_default=True,
    metavar="NAME",
    shell_complete=_models,
    help="the model to begin with",
)
@click.option(
    "--base", default="", metavar="IMAGE", help="the image that the zoo's image begins from  [default: a Python]"
)
@click.option("--list", "list_models", is_flag=True, help="print the models that there are, and write nothing")
@json_option
def command(folder: str, model: str, base: str, list_models: bool) -> None:
    """Begin a model zoo in an empty directory: one model, its data and test, and a Containerfile."""
    from trainmaster.integrations.elasticdl import zoos

    if list_models:
        if wants_json():
            print_json(list(zoos.models()))
        else:
            click.echo("\n".join(zoos.models()))
        return
    names = zoos.begin(Path(folder), model, base)
    if wants_json():
        print_json({"zoo": folder, "model": model, "files": names})
        return
    click.echo("\n".join(f"{folder}/{name}" for name in names))
    click.echo(f"train it, where {zoos.REQUIREMENTS} is installed:", err=True)
    for text in zoos.training_commands(Path(folder), model):
        click.echo(f"  {text}", err=True)
