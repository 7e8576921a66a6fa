"""`tm cluster status`: the daemons of this machine's clusters."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.options.cluster_given import KINDS, any_kind_argument, clusters_of
from trainmaster.cli.options.given import json_option, print_json, wants_json


@click.command("status")
@any_kind_argument
@click.option("--name", default="", help="only this one")
@json_option
def command(kind: str | None, name: str) -> None:
    """The clusters of this machine: their daemons, ports, memory and pages. Exit status 1 where one is broken."""
    kinds = [kind] if kind else KINDS
    found = [cluster for one in kinds for cluster in clusters_of(one).clusters() if name in ("", cluster.name)]
    if name and not found:
        clusters_of(kinds[0]).find(name)  # tells that there is none
    told = [_told(cluster) for cluster in found]
    if wants_json():
        print_json(told)
    elif not told:
        click.echo(f"no cluster is here; start one: tm cluster up {kinds[0] if kind else '|'.join(KINDS)}")
    else:
        for cluster in told:
            _print(cluster)
    if any(cluster["state"] == "broken" for cluster in told):
        raise click.exceptions.Exit(1)


def _told(cluster: Any) -> dict[str, Any]:
    at, daemons = cluster.place.ports, []
    for name in cluster.names:
        started = cluster.daemon(name).started
        key = "node" if name.startswith("nodemanager") else name
        ports = [port for what, port in at.items() if what == key or what.startswith(f"{key}.")]
        daemons.append({
            "name": name, "alive": started.alive, "pid": started.pid, "memory": started.memory,
            "ports": ports, "page": cluster.pages.get(name, ""), "log": str(cluster.daemon(name).log),
        })  # fmt: skip
    return {"name": cluster.name, "state": cluster.state, "folder": str(cluster.folder), "daemons": daemons}


def _print(cluster: dict[str, Any]) -> None:
    from trainmaster.client.watch.text import columns
    from trainmaster.core.spec.quantities import format_bytes

    click.echo(f"{cluster['name']}  {cluster['state']}  {cluster['folder']}")
    rows = [
        (
            daemon["name"],
            "lives" if daemon["alive"] else "DEAD",
            str(daemon["pid"]) if daemon["alive"] else "",
            format_bytes(daemon["memory"]) if daemon["alive"] else "",
            " ".join(map(str, daemon["ports"])),
            daemon["page"],
        )
        for daemon in cluster["daemons"]
    ]
    for line in columns(rows, ("DAEMON", "STATE", "PID", "MEMORY", "PORTS", "PAGE")):
        click.echo(f"  {line}")
