"""`tm cluster down`: the end of a cluster of this machine."""

from __future__ import annotations

import click

from trainmaster.cli.options.cluster_given import clusters_of, kind_argument, name_option
from trainmaster.cli.options.given import json_option, print_json, wants_json


@click.command("down")
@kind_argument
@name_option
@click.option("--keep", is_flag=True, help="keep its files; `up` starts it again on them (hadoop)")
@json_option
def command(kind: str, name: str | None, keep: bool) -> None:
    """End all of a cluster's processes, its containers too, and remove its files, HDFS or what the API server kept with them.

    It does so however the cluster was left: half started, killed, or recorded by nobody. Nothing else is touched.
    """
    name = name or kind
    if keep and kind != "hadoop":
        raise click.BadParameter(f"what {kind} had is gone with it", param_hint="--keep")
    ended = clusters_of(kind).down(name, **({"keep": True} if keep else {}))
    if wants_json():
        print_json({"name": name, "ended": ended})
    elif ended:
        click.echo(f"the cluster {name} is down{', its files are kept' if keep else ''}")
    else:
        click.echo(f"there is no cluster {name}")
