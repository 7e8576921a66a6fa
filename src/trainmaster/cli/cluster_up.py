"""`tm cluster up`: a cluster on this machine."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.cluster_given import Pair, Size, Time, kind_argument, name_option
from trainmaster.cli.given import json_option, print_json, wants_json

_PROTECTIONS = click.Choice(["authentication", "integrity", "privacy"])
_OPTIONS = (
    name_option,
    click.option("--nodes", type=int, default=1, show_default=True, help="NodeManagers"),
    click.option("--memory", type=Size(), default="4GiB", show_default=True, help="a node's memory for containers"),
    click.option("--cores", type=int, default=8, show_default=True, help="a node's cores for containers"),
    click.option("--gpus", type=int, default=0, help="GPUs that each node counts; none need to be there"),
    click.option("--resource", "resources", type=Pair("NAME=COUNT", int), multiple=True, help="a resource that each node counts"),
    click.option("--queue", "queues", type=Pair("NAME=PERCENT", float), multiple=True, help="a queue and its share; all make 100"),
    click.option("--label", "labels", type=Pair("NODE=LABEL"), multiple=True, help="the label of a node, by its number from 1"),
    click.option("--kerberos", is_flag=False, flag_value="authentication", type=_PROTECTIONS, help="with its own Kerberos"),
    click.option("--ha", "high_availability", is_flag=True, help="two ResourceManagers, of which one stands by"),
    click.option("--node-expiry", type=Time(), default="9s", show_default=True, help="silence after which a node is lost"),
    click.option("--master-expiry", type=Time(), default="30s", show_default=True, help="silence after which a master is lost"),
    click.option("--ticket-life", type=Time(), default="1d", show_default=True, help="of users' Kerberos tickets"),
    click.option("--token-renewal", type=Time(), default="1d", show_default=True, help="how long a delegation token lives unrenewed"),
    click.option("--token-life", type=Time(), default="7d", show_default=True, help="how long a delegation token lives at most"),
    click.option("--property", "properties", type=Pair("NAME=VALUE"), multiple=True, help="any property of Hadoop's configuration"),
)  # fmt: skip


def _options(function: Any) -> Any:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command("up")
@kind_argument
@_options
@json_option
def command(kind: str, name: str, gpus: int, **given: Any) -> None:
    """Start a Hadoop on this machine: HDFS and YARN, real daemons in directories and on ports of their own.

    Needs Java; Maven where Hadoop is not yet downloaded. Does nothing where the cluster runs already.
    """
    import signal
    import sys

    from trainmaster.clusters import hadoop
    from trainmaster.clusters.settings import GPU

    given |= {several: dict(given[several]) for several in ("resources", "queues", "labels", "properties")}
    if gpus:
        given["resources"][GPU] = gpus
    given = {option: value for option, value in given.items() if value is not None and (value or option != "queues")}
    try:
        given["labels"] = {int(node): label for node, label in given["labels"].items()}
    except ValueError:
        raise click.BadParameter("a node is given by its number, from 1: 1=gpu", param_hint="--label") from None
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what has begun is ended
    cluster, began = hadoop.up_or_found(hadoop.Settings(**given), name, say=lambda line: click.echo(line, err=True))
    if wants_json():
        print_json({"name": name, "began": began, "environ": cluster.environ, "pages": cluster.pages})
        return
    click.echo(f"the cluster {name} {'is ready' if began else 'runs already'}: {cluster.pages['resourcemanager']}")
    more = "" if name == "hadoop" else f" --name {name}"
    click.echo(f'use it in this shell: eval "$(tm cluster env hadoop{more})"')
    if cluster.settings.kerberos:
        click.echo(f"then take a ticket: kinit -kt {cluster.keytab(cluster.place.user)} {cluster.place.user}")
    click.echo(f"end it: tm cluster down hadoop{more}")
