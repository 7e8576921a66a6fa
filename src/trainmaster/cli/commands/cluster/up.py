"""`tm cluster up`: a cluster on this machine."""

from __future__ import annotations

import sys
from typing import Any

import click

from trainmaster.cli.options.cluster_given import clusters_of, kind_argument
from trainmaster.cli.options.cluster_options import options, settings_of
from trainmaster.cli.options.given import json_option, print_json, wants_json
from trainmaster.core.errors import BadInput

_HOME = {"hadoop": "resourcemanager", "kubernetes": "kube-apiserver", "spark": "master"}


@click.command("up")
@kind_argument
@options
@click.option("--yes", is_flag=True, help="hadoop: start it without asking where other users have processes")
@json_option
def command(kind: str, name: str | None, gpus: int, yes: bool, **values: Any) -> None:
    """Start a cluster on this machine: real daemons in directories of their own, reached from this machine alone.

    hadoop: HDFS and YARN. Needs Java; Maven where Hadoop is not yet downloaded. Without --kerberos every user of this machine can run
    programs on it as you. YARN's pages show them what runs, and its output.

    kubernetes: control plane, kubelets and containerd. Needs root, and Go where it is not yet built; with --simulated alone, no root.

    spark: a standalone master and its workers. Needs Java, and Spark: SPARK_HOME, or the package pyspark. Its pages, and those of its
    drivers, show every user of this machine what runs, and its output.

    If the cluster runs already, this does nothing.
    """
    import signal

    clusters, name = clusters_of(kind), name or kind
    settings = settings_of(kind, clusters.Settings, gpus, values)
    runs = any((cluster.name, cluster.state) == (name, "running") for cluster in clusters.clusters())
    if kind == "hadoop" and not (settings.kerberos or yes or runs):
        _ask_where_others_are()
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


def _ask_where_others_are() -> None:
    """Have the user confirm a cluster that is open to others who use this machine. Ends the command where that is refused."""
    from trainmaster.host.machine import other_users

    others = other_users()
    if not others:
        return
    verb = "has" if len(others) == 1 else "have"
    problem = f"{', '.join(others)} {verb} processes on this machine, and could run programs as you on this cluster"
    if not sys.stdin.isatty():
        raise BadInput(problem, mend="close it by --kerberos, or agree by --yes", anchor="open-cluster")
    click.confirm(f"{problem} (--kerberos closes it). Start it?", abort=True, err=True)
