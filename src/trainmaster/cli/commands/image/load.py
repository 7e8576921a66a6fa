"""`tm image load`: images for a Kubernetes of this machine, which fetches from nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import click

from trainmaster.cli.options.cluster_given import name_option
from trainmaster.cli.options.completing import files
from trainmaster.cli.options.given import json_option, print_json, wants_json


@click.command("load")
@click.argument("file", type=click.File("rb"), metavar="FILE", shell_complete=files)
@name_option
@json_option
def command(file: BinaryIO, name: str | None) -> None:
    """Give the images of a tar to all nodes of a cluster that `tm cluster up kubernetes` has started.

    \b
    docker save team/torch:2.4 | tm image load -
    buildah push team/torch:2.4 oci-archive:torch.tar:team/torch:2.4 && tm image load torch.tar

    FILE is as docker save writes it, or an OCI archive; - is what comes by the standard input.
    """
    import shutil
    import tempfile

    from trainmaster.clusters import kubernetes

    cluster = kubernetes.find(name or "kubernetes")
    with tempfile.NamedTemporaryFile(prefix="trainmaster-image-") as copy:  # each node reads it
        shutil.copyfileobj(file, copy)
        copy.flush()
        names = cluster.load_everywhere(Path(copy.name), getattr(file, "name", "-"))
    if wants_json():
        print_json({"images": names, "nodes": cluster.settings.nodes})
        return
    for image in names:
        click.echo(f"loaded {image}")
