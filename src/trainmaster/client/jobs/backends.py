"""The way to jobs by their engine."""

from __future__ import annotations

from trainmaster.client.jobs.backend import Backend
from trainmaster.client.jobs.places import engine_of
from trainmaster.engines import registry


def backend(engine: str) -> Backend:
    """Return the way to jobs of an engine. Raises BadInput where there is no such engine."""
    if registry.is_on_this_machine(engine):
        from trainmaster.client.jobs.this_machine import ThisMachine

        return ThisMachine(engine)
    from trainmaster.client.jobs.cluster import Cluster

    return Cluster(engine)


def backend_of(job: str) -> Backend:
    """Return the way to a job."""
    return backend(engine_of(job))
