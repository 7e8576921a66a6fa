"""`tm zoo push`: an image, to where a cluster fetches it."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import json_option, print_json, wants_json


@click.command("push")
@click.argument("image", metavar="NAME[:TAG]")
@click.option(
    "--with",
    "tool",
    default="",
    metavar="TOOL",
    help="docker, podman, buildah or nerdctl  [default: the first that works]",
)
@json_option
def command(image: str, tool: str) -> None:
    """Push an image to the registry that its name leads to, with the tool that built it."""
    from trainmaster.clusters import recipes

    chosen = recipes.tool(tool)
    recipes.push(chosen, image)
    if wants_json():
        print_json({"image": image, "tool": chosen})
        return
    click.echo(f"{image} is pushed with {chosen}")
    click.echo(f"name it in jobs: tm train --image_name {image} ..., or environment.image", err=True)
