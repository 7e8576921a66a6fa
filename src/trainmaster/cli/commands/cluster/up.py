"""`tm cluster up`: a cluster on this machine."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.options.cluster_given import clusters_of, kind_argument
from trainmaster.cli.options.cluster_options import options, settings_of
from trainmaster.cli.options.given import json_option, print_json, wants_json

_HOME = {"hadoop": "resourcemanager", "kubernetes": "kube-apiserver", "spark": "master"}


@click.command("up")
@kind_argument
@options
@json_option
def command(kind: str, name: str | None, gpus: int, **values: Any) -> None:
    """Start a cluster on this machine: real daemons in directories of their own, reached by nobody else.

    hadoop: HDFS and YARN. Needs Java; Maven where Hadoop is not yet downloaded.

    kubernetes: control plane, kubelets and containerd. Needs root, and Go where it is not yet built; with --simulated alone, no root.

    spark: a standalone master and its workers. Needs Java, and Spark: SPARK_HOME, or the package pyspark.

    If the cluster runs already, this does nothing.
    """
    import signal
    import sys

    clusters, name = clusters_of(kind), name or kind
    settings = settings_of(kind, clusters.Settings, gpus, values)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what has begun is ended
    cluster, began = clusters.up_or_found(settings, name, say=lambda line: click.echo(line, err=True))
    if wants_json():
        print_json({"name": name, "began": began, "environ": cluster.environ, "pages": cluster.pages})
        return
    click.echo(f"the cluster {name} {'is ready' if began else 'runs already'}: {cluster.pages[_HOME[kind]]}")
    suffix = "" if name == kind else f" --name {name}"
    click.echo(f'use it in this shell: eval "$(tm cluster env {kind}{suffix})"')
    if hint := getattr(cluster, "hint", ""):
        click.echo(hint)
    if getattr(cluster.settings, "kerberos", ""):
        click.echo(f"then take a ticket: kinit -kt {cluster.keytab(cluster.place.user)} {cluster.place.user}")
    click.echo(f"end it: tm cluster down {kind}{suffix}")
