"""`tm elasticdl`: ElasticDL's command line, word for word."""

from __future__ import annotations

from pathlib import Path

import click

from trainmaster.cli.commands.zoo import build, push
from trainmaster.cli.models import model_command
from trainmaster.cli.options.given import json_option


@click.group("elasticdl")
@json_option
def command() -> None:
    """Take an ElasticDL command line word for word: tm elasticdl train ... for elasticdl train ..."""


@click.group("zoo")
@json_option
def zoo() -> None:
    """Make an image of a model zoo: write its Dockerfile, build it, push it."""


@click.command("init")
@click.option("--base_image", default="", metavar="IMAGE", help="the image to begin from  [default: a Python]")
@click.option("--extra_pypi_index", default="", metavar="URL", help="a further index of packages")
@click.option(
    "--cluster_spec",
    default="",
    metavar="FILE",
    help="nothing to do here: train, evaluate and predict take --cluster_spec_json",
)
@click.option("--local_pkg_dir", default="", metavar="DIR", help="a directory of wheels to be installed")
@click.option("--model_zoo", default=".", show_default=True, metavar="DIR", help="the directory of model files")
@json_option
def init(base_image: str, extra_pypi_index: str, cluster_spec: str, local_pkg_dir: str, model_zoo: str) -> None:
    """Write ./Dockerfile for the image of a model zoo."""
    from trainmaster.integrations.elasticdl.zoos import recipe_of_theirs, writing

    if cluster_spec:
        click.echo(
            "--cluster_spec: nothing to do here; write what it adds as --cluster_spec_json of train, evaluate and predict",
            err=True,
        )
    text = recipe_of_theirs(model_zoo, base_image, local_pkg_dir, extra_pypi_index)
    with writing(Path("Dockerfile")):
        Path("Dockerfile").write_text(text)
    click.echo("Dockerfile is written; build the image: tm elasticdl zoo build --image=NAME .")


zoo.add_command(init)
zoo.add_command(build.command)
zoo.add_command(push.command)
for verb in ("train", "evaluate", "predict"):
    command.add_command(model_command(verb, is_theirs=True))
command.add_command(zoo)
