"""`tm zoo build`: an image with a model zoo."""

from __future__ import annotations

from pathlib import Path

import click

from trainmaster.cli.options.completing import files
from trainmaster.cli.options.given import json_option, print_json, wants_json


@click.command("build")
@click.argument("folder", required=False, default=".", metavar="[DIR]", shell_complete=files)
@click.option("--image", required=True, metavar="NAME[:TAG]", help="the image's name")
@click.option(
    "--with",
    "tool",
    default="",
    metavar="TOOL",
    help="docker, podman, buildah or nerdctl  [default: the first that works]",
)
@json_option
def command(folder: str, image: str, tool: str) -> None:
    """Build the image of a model zoo by its Containerfile or Dockerfile.

    It is built with the first of docker, podman, buildah and nerdctl that works.
    """
    from trainmaster.clusters import recipes
    from trainmaster.integrations.elasticdl.zoos import recipe_in

    recipe = recipe_in(Path(folder))
    chosen = recipes.tool(tool)
    recipes.build_folder(chosen, image, Path(folder), recipe)
    if wants_json():
        print_json({"image": image, "tool": chosen})
        return
    click.echo(f"{image} is built with {chosen}; push it: tm zoo push {image}")
