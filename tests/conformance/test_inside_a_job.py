"""`tm run` inside a program that `tm run` started."""

from __future__ import annotations

import pytest
from conformance.engines import TM, Engine, workers

from trainmaster.host.machine import machine

pytestmark = pytest.mark.needs("local-master")


def test_a_job_inside_another_does_not_wait_for_what_that_one_holds(engine: Engine) -> None:
    program = f"cd $(mktemp -d) && '{TM}' run --name inner -- echo inner ran"
    everything = {"cores": machine(False).cores, "memory": "2GiB"}
    job = engine.submit(workers(program, resources=everything, restart="never"))
    job.succeeded()
    assert "inner ran" in job.lines()
