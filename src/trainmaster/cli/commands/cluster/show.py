"""`tm cluster show`: nodes, queues, labels, and what is free."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import engine_option, json_option, print_json, wants_json


@click.command("show")
@engine_option(doc="whose cluster")
@json_option
def command(engine: str) -> None:
    """Show the nodes of an engine's cluster with what is free on each, and its queues."""
    import attrs

    from trainmaster.client.jobs.places import client_side
    from trainmaster.core.spec.quantities import format_bytes
    from trainmaster.words.text import columns

    client = client_side(engine)
    nodes, queues = client.free(), client.queues()
    if wants_json():
        print_json(
            {"nodes": [attrs.asdict(node) for node in nodes], "queues": [attrs.asdict(queue) for queue in queues]}
        )
        return
    rows = [
        (
            node.node, f"{node.free_cores:g} of {node.cores:g}", f"{format_bytes(node.free_memory)} of {format_bytes(node.memory)}",
            f"{node.free_gpus} of {node.gpus}" if node.gpus else "-", ", ".join(node.labels.values()) or "-",
            ", ".join(f"{node.free_extended.get(name, 0)} of {has} {name}" for name, has in node.extended.items()) or "-",
        )
        for node in nodes
    ]  # fmt: skip
    for line in (
        columns(rows, ("NODE", "CORES FREE", "MEMORY FREE", "GPUS FREE", "LABEL", "OTHERS FREE"))
        if rows
        else ("no node is there",)
    ):
        click.echo(line)
    if queues:
        click.echo()
    for line in columns([_queue(queue) for queue in queues], _HEAD) if queues else ():
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


def _queue(queue: object) -> tuple[object, ...]:
    from trainmaster.core.spec.quantities import format_bytes
    from trainmaster.engines.contract import Queue

    assert isinstance(queue, Queue)
    name = queue.name if queue.open else f"{queue.name} (stopped)"
    return (
        name, f"{queue.share:.0%}", f"{queue.most:.0%}", f"{queue.used:.0%}", format_bytes(queue.free_memory),
        f"{queue.masters:.0%}", queue.running, queue.pending, ", ".join("all" if label == "*" else label for label in queue.labels) or "-",
    )  # fmt: skip
