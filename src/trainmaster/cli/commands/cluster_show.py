"""`tm cluster show`: nodes, queues, labels, and what is free."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import json_option, print_json, wants_json


@click.command("show")
@click.option(
    "--engine", metavar="NAME", default="local", show_default=True, help="whose cluster: local, yarn or kubernetes"
)
@json_option
def command(engine: str) -> None:
    """The nodes of an engine's cluster with what is free on each, and its queues."""
    import attrs

    from trainmaster.client.jobs.places import client_side
    from trainmaster.client.watch.text import columns
    from trainmaster.core.spec.quantities import format_bytes

    client = client_side(engine)
    nodes, queues = client.free(), client.queues()
    if wants_json():
        print_json({"nodes": [attrs.asdict(one) for one in nodes], "queues": [attrs.asdict(one) for one in queues]})
        return
    rows = [
        (
            one.node, f"{one.free_cores:g} of {one.cores:g}", f"{format_bytes(one.free_memory)} of {format_bytes(one.memory)}",
            f"{one.free_gpus} of {one.gpus}" if one.gpus else "-", ", ".join(one.labels.values()) or "-",
            ", ".join(f"{one.free_extended.get(name, 0)} of {has} {name}" for name, has in one.extended.items()) or "-",
        )
        for one in nodes
    ]  # fmt: skip
    for line in (
        columns(rows, ("NODE", "CORES FREE", "MEMORY FREE", "GPUS FREE", "LABEL", "OTHERS FREE"))
        if rows
        else ("no node is there",)
    ):
        click.echo(line)
    if queues:
        click.echo()
    for line in columns([_queue(one) for one in queues], _HEAD) if queues else ():
        click.echo(line)


_HEAD = (
    "QUEUE",
    "SHARE",
    "AT MOST",
    "USED OF SHARE",
    "MEMORY FREE",
    "FOR MASTERS",
    "JOBS RUNNING",
    "WAITING",
    "LABELS",
)


def _queue(one: object) -> tuple[object, ...]:
    from trainmaster.core.spec.quantities import format_bytes
    from trainmaster.engines.contract import Queue

    assert isinstance(one, Queue)
    name = one.name if one.open else f"{one.name} (stopped)"
    return (
        name, f"{one.share:.0%}", f"{one.most:.0%}", f"{one.used:.0%}", format_bytes(one.free_memory),
        f"{one.masters:.0%}", one.running, one.pending, ", ".join("all" if label == "*" else label for label in one.labels) or "-",
    )  # fmt: skip
