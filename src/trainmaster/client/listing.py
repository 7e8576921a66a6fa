"""The jobs that a user has, for `tm list` and `trainmaster.jobs()`: those that this machine knows, and those that clusters tell of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from trainmaster.client.handles import clusters_at_hand
from trainmaster.client.places import engine_of, kept, state_dir
from trainmaster.core.errors import TrainmasterError
from trainmaster.log.index import Headline, jobs
from trainmaster.log.storage import LocalStorage


def adopt_at_hand(engine: str = "") -> list[TrainmasterError]:
    """Have this machine know the jobs of ours on the clusters at hand, or on that of one engine; return why some could not be asked."""
    from trainmaster.client.distant import adopt_all

    errors = []
    for name in [engine] if engine else clusters_at_hand():
        try:
            adopt_all(name)
        except TrainmasterError as error:
            errors.append(error)
    return errors


def headlines() -> list[Headline]:
    """Return the jobs that this machine knows, newest first."""
    with kept("read the jobs", state_dir()):
        return jobs(LocalStorage(state_dir()))


def matches(job: Headline, states: Sequence[str], name: str | None, after: float) -> bool:
    """Tell whether a job is in one of the states, has a name or an id like `name`, and was submitted after a time."""
    from fnmatch import fnmatchcase

    named = name is None or any(fnmatchcase(text, name) for text in (job.name, job.id))
    return named and (not states or job.word in states) and (job.submitted or 0.0) >= after


def plain(job: Headline) -> dict[str, Any]:
    """Return a job of the list as plain data, with its engine."""
    return {"engine": engine_of(job.id), **attrs.asdict(job)}
