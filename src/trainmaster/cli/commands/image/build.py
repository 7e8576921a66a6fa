"""`tm image build`: an image for programs, or of the runtime."""

from __future__ import annotations

import click

from trainmaster.cli.options.completing import files
from trainmaster.cli.options.given import json_option, print_json, wants_json


@click.command("build")
@click.argument("name", required=False, default="", metavar="[NAME[:TAG]]")
@click.option(
    "--base", default="", help="the base image; with --runtime one that has sh, cp and mkdir  [default: a Python]"
)
@click.option(
    "-r",
    "--requirements",
    default="",
    metavar="FILE",
    shell_complete=files,
    help="packages that programs need, as pip takes them",
)
@click.option("--runtime", is_flag=True, help="one for engines.kubernetes.runtime_image: our runtime, and no program's")
@click.option(
    "--with",
    "tool",
    default="",
    metavar="TOOL",
    help="docker, podman, buildah or nerdctl  [default: the first that works]",
)
@click.option("--print", "print_only", is_flag=True, help="print the recipe, and build nothing")
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTION...]")
@json_option
def command(
    name: str, base: str, requirements: str, runtime: bool, tool: str, print_only: bool, more: tuple[str, ...]
) -> None:
    """Build an image, with the first of docker, podman, buildah and nerdctl that works.

    \b
    tm image build registry.example.org/team/torch:2.4 -r requirements.txt
    tm image build registry.example.org/team/trainmaster:1 --runtime

    The words after -- go to that tool. Push the image yourself to where the cluster fetches it: TOOL push NAME.
    """
    from trainmaster.clusters import recipes

    text = recipes.recipe(base, requirements, runtime)
    if print_only:
        if wants_json():
            print_json({"recipe": text})
        else:
            click.echo(text, nl=False)
        return
    if not name:
        raise click.UsageError("missing argument 'NAME[:TAG]'", click.get_current_context())
    chosen = recipes.tool(tool)
    archive = None
    if runtime:
        from trainmaster.client.jobs.places import state_dir
        from trainmaster.engines.runtime_archive import archive as runtime_archive

        archive = runtime_archive(state_dir() / "runtime")
    recipes.build(chosen, name, text, requirements, archive, more)
    if wants_json():
        print_json({"image": name, "tool": chosen})
        return
    key = "engines.kubernetes.runtime_image" if runtime else "environment.image"
    click.echo(f"{name} is built; push it to where the cluster fetches it: {chosen} push {name}")
    click.echo(f"then name it in jobs: {key}: {name}", err=True)
