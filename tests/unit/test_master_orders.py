"""What is asked for and what is ordered say the same, and no more than the engine has."""

from __future__ import annotations

import pytest

from trainmaster.core.reading import job_from
from trainmaster.core.state import State, populate
from trainmaster.master.orders import Orders

MIB = 1 << 20
RESOURCES = {"memory": "400MiB", "overhead": "64MiB"}


@pytest.mark.parametrize(
    ("factor", "largest", "asked"),
    [(1.0, 1024, 464), (2.0, 1024, 864), (100.0, 1024, 1024), (100.0, None, 40064), (2.0, 100, 464)],
)
def test_after_out_of_memory_no_more_is_asked_than_the_engine_has(
    factor: float, largest: int | None, asked: int
) -> None:
    job = job_from({"name": "t", "roles": {"worker": {"command": "true", "resources": RESOURCES, "retry_memory": 2}}})
    state = State(id="t-aaaaaa")
    populate(state, job)
    state.tasks["worker:0"].memory_factor = factor
    orders = Orders(job, {})
    orders.largest = None if largest is None else largest * MIB
    request = orders.request(state, "worker:0", 1)
    assert (request.memory, request.program_memory) == (asked * MIB, (asked - 64) * MIB)
