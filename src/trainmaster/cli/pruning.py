"""Remove old jobs and caches, after showing what is to go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from trainmaster.cli.options.given import print_json, wants_json
from trainmaster.cli.several import for_each, raise_first

if TYPE_CHECKING:
    from trainmaster.client.jobs.removal import Cached
    from trainmaster.log.index import Headline


def prune(older: float | None, keep: int | None, with_jobs: bool, dry_run: bool, yes: bool) -> None:
    """Remove the jobs that ended more than `older` seconds ago, and those beyond the `keep` newest; clear caches by `older`."""
    import time

    from trainmaster.client.jobs.listing import adopt_at_hand
    from trainmaster.client.jobs.removal import clear, ended_before, remove, unused_since
    from trainmaster.engines import registry

    limit = time.time() - older if older is not None else 0.0
    errors_by_engine = adopt_at_hand()
    for engine, error in errors_by_engine.items():  # nobody knows which jobs run there
        click.echo(f"warning: nothing is cleared on {engine}: {error.message}", err=True)
    reachable = [engine for engine in registry.configured() if engine not in errors_by_engine]
    jobs = ended_before(limit, keep) if with_jobs else []
    entries = list(unused_since(limit, reachable)) if older is not None else []
    if wants_json() and not (yes or dry_run):
        raise click.UsageError("with --json nobody is asked: add --yes, or --dry-run", click.get_current_context())
    total = _show(jobs, entries)
    if dry_run or not (jobs or entries):
        click.echo(f"would go: {total}" if jobs or entries else "nothing is that old", err=True)
        return
    if not yes:
        _confirm(total)
    errors = for_each((job.id for job in jobs), remove)
    gone = f"{len(jobs) - len(errors)} of {len(jobs)} jobs, {sum(map(clear, entries))} of {len(entries)} cached files"
    click.echo(f"removed: {gone}", err=True)
    raise_first(errors)


def _show(jobs: Sequence[Headline], entries: Sequence[Cached]) -> str:
    """Print what is to go; return it in one line."""
    import time

    import attrs

    from trainmaster.core.spec.quantities import format_bytes, format_count

    if wants_json():
        print_json({"jobs": [job.id for job in jobs], "caches": [attrs.asdict(entry) for entry in entries]})
    else:
        for job in jobs:
            click.echo(f"{job.id} {job.state}, ended {time.strftime('%Y-%m-%d', time.localtime(job.ended))}")
        for entry in entries:
            click.echo(f"{entry.place} {format_bytes(entry.size)}")
    size = format_bytes(sum(entry.size for entry in entries))
    return f"{format_count(len(jobs), 'job')}, {format_count(len(entries), 'cached file')} ({size})"


def _confirm(total: str) -> None:
    """Ask whoever sits there; nobody is asked in a script, which has to say --yes."""
    import sys

    if not sys.stdin.isatty():
        raise click.UsageError(f"to remove {total}, add --yes; --dry-run shows them", click.get_current_context())
    click.confirm(f"remove {total}?", abort=True, err=True)
