"""`tm audit`: prove that each record was counted once."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import job_argument, json_option, print_json, wants_json


@click.command("audit")
@job_argument
@json_option
def command(job: str) -> None:
    """Prove from the event log of JOB alone that each record of its shards was counted exactly once.

    Exit status: 0 proven (so far, while it runs), 1 a fault was found.
    """
    from trainmaster.client.jobs.past import Past
    from trainmaster.core.errors import StorageFailed
    from trainmaster.core.input.audit import audit as prove
    from trainmaster.core.input.shards import ShardTable
    from trainmaster.core.machine.events import Event, decode, wrong_shape
    from trainmaster.log.reader import Reader, replay

    reader = Reader(Past(job).storage)
    events: list[Event] = list(replay(reader, decode))
    if events and (dropped := events[-1].n - len(events)):
        raise StorageFailed(
            f"{dropped:,} events of {job} were dropped, for its log is in its cluster alone: nothing can be proven",
            mend="give such jobs a storage of their own: storage: URL", anchor="events-dropped",
        )  # fmt: skip
    try:
        listings = next((dict(event.data["listings"]) for event in events if event.type == "inputs-listed"), {})
        listings |= {event.data["input"]: event.data["listing"] for event in events if event.type == "input-counted"}
        tables = {name: ShardTable.from_listing(listing) for name, listing in listings.items() if "shards" in listing}
        verdict = prove(events, tables)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        wrong = next(
            (f"event {event.n}: {problem}" for event in events if (problem := wrong_shape(event))), repr(error)
        )
        raise reader.damaged(wrong) from error
    if wants_json():
        print_json(verdict.to_json())
    else:
        for line in verdict.lines() or [f"{job} reads no input as shards, and no feed: there is nothing to count"]:
            click.echo(line)
    if not verdict.ok:
        raise click.exceptions.Exit(1)
