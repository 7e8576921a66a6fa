"""`tm cluster status`: the daemons of this machine's clusters."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.options.cluster_given import KINDS, any_kind_argument, clusters_of
from trainmaster.cli.options.given import json_option, print_json, wants_json

_SHARED_PORTS = {"nodemanager": "node", "worker": "worker"}  # daemons of one kind, each at an address of its own


@click.command("status")
@any_kind_argument
@click.option("--name", default="", help="only this one")
@json_option
def command(kind: str | None, name: str) -> None:
    """Show the clusters of this machine: their daemons, ports, memory and pages. Exit status 1 where one is broken."""
    kinds = [kind] if kind else KINDS
    clusters = [
        cluster
        for name_of_kind in kinds
        for cluster in clusters_of(name_of_kind).clusters()
        if name in ("", cluster.name)
    ]
    if name and not clusters:
        clusters_of(kinds[0]).find(name)  # tells that there is none
    reports = [_report(cluster) for cluster in clusters]
    if wants_json():
        print_json(reports)
    elif not reports:
        click.echo(f"no cluster is here; start one: tm cluster up {kinds[0] if kind else '|'.join(KINDS)}")
    else:
        for cluster in reports:
            _print(cluster)
    if any(cluster["state"] == "broken" for cluster in reports):
        raise click.exceptions.Exit(1)


def _report(cluster: Any) -> dict[str, Any]:
    named_ports, daemons = cluster.place.ports, []
    for name in cluster.names:
        started = cluster.daemon(name).started
        key = name if name in named_ports else _SHARED_PORTS.get(name.partition("-")[0], name)
        ports = [port for port_name, port in named_ports.items() if port_name == key or port_name.startswith(f"{key}.")]
        daemons.append({
            "name": name, "alive": started.alive, "pid": started.pid, "memory": started.memory,
            "ports": ports, "page": cluster.pages.get(name, ""), "log": str(cluster.daemon(name).log),
        })  # fmt: skip
    return {"name": cluster.name, "state": cluster.state, "folder": str(cluster.folder), "daemons": daemons}


def _print(cluster: dict[str, Any]) -> None:
    from trainmaster.core.spec.quantities import format_bytes
    from trainmaster.words.text import columns

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
