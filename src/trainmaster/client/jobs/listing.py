"""The jobs that a user has, for `tm list` and `trainmaster.jobs()`: those that this machine knows, and those that clusters tell of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from trainmaster.client.jobs.places import client_side, engine_of, state_dir, storage_errors
from trainmaster.client.spec.settings import default_engine
from trainmaster.core.errors import EngineFailed, TrainmasterError
from trainmaster.engines import registry
from trainmaster.log.index import Headline, jobs
from trainmaster.log.storage import LocalStorage

PATIENCE = 3.0  # seconds for the answer of a cluster that only happens to be configured here
NAMED_PATIENCE = 15.0  # the same of one that the user names


def adopt_at_hand(engine: str = "", patience: float = 0.0) -> dict[str, TrainmasterError]:
    """Have this machine know the jobs of ours on the clusters at hand, or on that of one engine; return why some could not be asked, by
    engine. All are asked at once, and waited for `patience` seconds; 0: longer for one that is named.
    """
    from trainmaster.client.jobs.adopting import adopt_all

    listings = [_Listing(name) for name in clusters(engine)]
    for listing in listings:
        listing.start()
    patience = patience or (NAMED_PATIENCE if engine else PATIENCE)
    limit = time.monotonic() + patience
    errors = {}
    for listing in listings:
        listing.join(max(0.0, limit - time.monotonic()))
        try:
            adopt_all(listing.engine, listing.result(patience))
        except TrainmasterError as error:
            errors[listing.engine] = error
    return errors


def adopt_of(engine: str) -> str:
    """Have this machine know the jobs of ours on the cluster of an engine. Raises why it cannot be asked; where no engine is named, that of
    the settings is asked, and why it cannot be is returned.
    """
    if not engine:
        default = default_engine(registry.DEFAULT)
        errors = adopt_at_hand(default, PATIENCE)
        return "".join(
            f"without jobs of {default} that other machines submitted: {errors[name].message}" for name in errors
        )
    registry.engine(engine)  # raises BadInput where there is none
    for error in adopt_at_hand(engine).values():
        raise error
    return ""


def clusters(engine: str = "") -> list[str]:
    """Return the engines whose clusters may have jobs of ours: those that this machine is configured for, or only the one that is named."""
    if not engine:
        return registry.configured()
    return [] if registry.is_on_this_machine(engine) else [engine]


class _Listing(threading.Thread):
    """A question to a cluster for the jobs of ours. A thread asks: some clients try a dead cluster for half a minute."""

    def __init__(self, engine: str) -> None:
        super().__init__(name=f"jobs of {engine}", daemon=True)
        self.engine = engine
        self._jobs: dict[str, str] = {}
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._jobs = client_side(self.engine).find_jobs("")
        except Exception as error:  # noqa: BLE001 - `result` raises it for its caller
            self._error = error

    def result(self, waited: float) -> dict[str, str]:
        """Return job -> application. Raises what asking raised, EngineFailed where no answer came within the seconds `waited`."""
        if self.is_alive():
            raise EngineFailed(
                f"the cluster of {self.engine} has not answered within {waited:.0f} s",
                mend="check that it runs, and that its configuration is the one that you mean", anchor=self.engine,
            )  # fmt: skip
        if self._error is not None:
            raise self._error
        return self._jobs


def headlines() -> list[Headline]:
    """Return the jobs that this machine knows, newest first."""
    with storage_errors("read the jobs", state_dir()):
        return jobs(LocalStorage(state_dir()))


def matches(job: Headline, states: Sequence[str], name: str | None, after: float) -> bool:
    """Tell whether a job is in one of the states, has a name or an id like `name`, and was submitted after a time."""
    from fnmatch import fnmatchcase

    named = name is None or any(fnmatchcase(text, name) for text in (job.name, job.id))
    return named and (not states or job.word in states) and (job.submitted or 0.0) >= after


def present_statuses(listed: Sequence[Headline], status: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the statuses of the jobs that have not ended; of one that cannot be read what the list has, and the error."""
    statuses = []
    for job in listed:
        if job.ended is None:
            try:
                statuses.append(status(job.id))
            except TrainmasterError as error:
                statuses.append({**plain(job), "error": error.message})
    return statuses


def plain(job: Headline) -> dict[str, Any]:
    """Return a job of the list as plain data, with its engine."""
    return {**attrs.asdict(job), "engine": job.engine or engine_of(job.id)}
