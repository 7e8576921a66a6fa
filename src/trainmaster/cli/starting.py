"""Submitting a described job, for `run`, `submit` and the command lines of other systems."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from trainmaster.cli.remarks import Spoken, naming_origins, unchanged, warn, warner

if TYPE_CHECKING:
    from trainmaster.client.watch.leaving import Begun


def start(
    described: Any,
    key: str,
    begun: Begun,
    prepare: Callable[[str], object] = lambda job: None,
    spoken: Spoken = unchanged,
) -> None:
    """Submit the job and print its warnings; it is `begun.job` from then on. `key`: of idempotency. `spoken`: see `warn`."""
    from trainmaster.client.submit.submit import submit
    from trainmaster.core.spec.description import sources_of

    with naming_origins(described):
        submit(
            described.job, base=described.base, key=key, fork=True, engine=described.engine, prepare=prepare, announce=begun.note,
            warn=warner(described, spoken), sources=sources_of(described.origins),
        )  # fmt: skip
    warn(described, spoken)


def say_submitted(job: str) -> None:
    """Print the id of a job on stdout, and what to do with it on stderr."""
    click.echo(job)
    click.echo(f"watch it: tm attach {job}   its output: tm logs -f {job}   end it: tm kill {job}", err=True)
