"""A job that is over is removed wherever it was: from this machine, its storage, and its cluster."""

from __future__ import annotations

import pytest
from conformance.engines import Engine, workers
from waiting import until

from trainmaster.client.jobs.places import job_ids, job_storage
from trainmaster.client.jobs.sweep import is_abandoned
from trainmaster.core.errors import TrainmasterError
from trainmaster.log.documents.jobs import place_of
from trainmaster.log.storage import storage_for

pytestmark = pytest.mark.full


def test_a_job_that_is_over_is_removed_from_its_cluster_too(engine: Engine) -> None:
    job = engine.submit(workers("echo here"))
    job.until_line("here")
    job.succeeded()
    place = place_of(str(job_storage(job.id)))
    until(lambda: is_abandoned(job.id), what="its master to have left")
    done = engine.tm("remove", job.id)
    assert done.returncode == 0, done.stderr
    engine.jobs.clear()
    assert job.id not in job_ids()

    def is_gone() -> bool:  # Kubernetes deletes what a root owns in the background
        try:
            return not storage_for(place).entries("")
        except TrainmasterError:
            return True

    until(is_gone, what=f"{place} to be removed")
    if engine.name != "local":
        assert engine.tm("list", "--all", "--engine", engine.name).returncode == 0
    assert job.id not in engine.tm("list", "--all").stdout
    told = engine.tm("status", job.id)
    assert (told.returncode, "there is no job" in told.stderr) == (2, True), told.stderr
