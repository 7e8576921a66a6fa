"""A program's libraries use the threads of its share of the cores, and what the user set stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.client.submit.preview import tasks_at_start, thread_lines, thread_shares
from trainmaster.core.errors import BadInput
from trainmaster.core.machine.state import State, populate
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.core.spec.threads import VARIABLES, tasks_at_once, thread_count, thread_variables
from trainmaster.core.states import FAILED, SUCCEEDED
from trainmaster.host.machine import cores as machine_cores


@pytest.mark.parametrize(
    ("threads", "cores", "copies", "machine_cores", "tasks", "each"),
    [
        ("cores", 4, 1, 64, 2, 4), ("cores", 4, 2, 64, 2, 2), ("cores", 0.05, 1, 64, 2, 1), ("cores", 3, 2, 64, 1, 1),
        ("machine", 1, 1, 2, 1, 2), ("machine", 1, 1, 2, 2, 1), ("machine", 1, 1, 2, 4, 1), ("machine", 1, 2, 16, 2, 4),
        ("machine", 1, 1, 1.5, 1, 1), (7, 1, 4, 2, 9, 7),
    ],
)  # fmt: skip
def test_programs_that_share_cores_share_them_without_waiting_for_each_other(
    threads: int | str, cores: float, copies: int, machine_cores: float, tasks: int, each: int
) -> None:
    assert thread_count(threads, cores, copies, machine_cores, tasks) == each


@given(st.sampled_from(["cores", "machine"]), st.integers(1, 256), st.integers(1, 64), st.integers(0, 500))
def test_all_programs_together_have_no_more_threads_than_cores_or_one_each(
    threads: str, cores: int, copies: int, tasks: int
) -> None:
    each = thread_count(threads, cores, copies, cores, tasks)
    sharing = max(1, tasks) if threads == "machine" else 1
    assert each == 1 or each * copies * sharing <= cores


def role(**keys: Any) -> Any:
    return job_from({"name": "t", "roles": {"worker": {"command": "true", **keys}}}).roles["worker"]


def test_a_role_without_cores_has_a_share_of_the_machine() -> None:
    assert role().threads == "machine"
    assert role(resources={"memory": "1GiB"}).threads == "machine"
    assert role(resources={"cores": 1}).threads == "cores"
    assert role(resources={"cores": 1}, threads=3).threads == 3
    with pytest.raises(BadInput, match="threads"):
        role(threads=0)


@pytest.mark.parametrize("keys", [{}, {"resources": {"cores": 2}}, {"threads": 3}, {"threads": "machine"}])
def test_a_job_read_again_has_the_same_threads(keys: dict[str, Any]) -> None:
    job = job_from({"name": "t", "roles": {"worker": {"command": "true", **keys}}})
    assert job_from(job_to(job)) == job


def test_tasks_that_are_over_or_wait_for_others_have_no_share() -> None:
    roles = {
        "fetch": {"command": "true"},
        "worker": {"command": "true", "replicas": 3, "after": {"fetch": "succeeded"}},
    }
    state = State(id="t")
    populate(state, job_from({"name": "t", "roles": roles}))
    assert tasks_at_once(state) == 1
    for group in state.groups:
        group.opened = True
    state.tasks["fetch:0"].final = FAILED
    assert tasks_at_once(state) == 3


ROLES = {
    "fetch": {"command": "true"},
    "ps": {"command": "true", "replicas": 2},
    "worker": {"command": "true", "replicas": {"min": 2, "max": 64}, "after": {"fetch": "succeeded", "ps": "running"}},
    "report": {"command": "true", "after": {"worker": "succeeded"}},
}


@pytest.mark.parametrize(
    ("gang", "role", "tasks"),
    [
        (True, "fetch", (3, 3)), (True, "ps", (3, 3)), (True, "worker", (4, 66)), (True, "report", (3, 3)), (False, "worker", (66, 66)),
    ],
)  # fmt: skip
def test_a_preview_counts_tasks_as_the_master_will(gang: bool, role: str, tasks: tuple[int, int]) -> None:
    job = job_from({"name": "t", "gang": gang, "roles": ROLES})
    assert tasks_at_start(job, role) == tasks
    for size in {2, 64} if gang else {64}:
        state = State(id="t")
        populate(state, job)
        for group in state.groups:
            group.opened = group.number <= state.tasks[f"{role}:0"].group
        for task in state.tasks.values():
            task.is_spare = task.role == "worker" and task.index >= size
            task.final = (
                SUCCEEDED
                if state.groups[task.group].number < state.tasks[f"{role}:0"].group and task.role != "ps"
                else ""
            )
        assert tasks_at_once(state) in tasks


def test_a_preview_says_how_many_threads_there_may_be() -> None:
    job = job_from(
        {"name": "t", "gang": True, "roles": {"worker": {**ROLES["fetch"], "replicas": {"min": 1, "max": 1000}}}}
    )
    share = thread_shares(job, "local")["worker"]
    assert (share["min"], share["max"]) == (1, max(1, int(machine_cores())))
    assert next(thread_lines({"worker": {"min": 1, "max": 8, "variables": list(VARIABLES), "shared": True}})) == (
        "threads of each worker program's libraries: 1 to 8, by how many of the job's tasks begin together, fewer beside other jobs"
    )
    assert thread_shares(job, "yarn")["worker"]["max"] == 1


@pytest.mark.parametrize(
    ("environ", "variables"),
    [
        ({}, set(VARIABLES)),
        ({"OMP_NUM_THREADS": "4"}, {"TF_NUM_INTRAOP_THREADS", "PJRT_NPROC"}),
        ({"MKL_NUM_THREADS": "4", "NPROC": "4"}, {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"}),
    ],
)
def test_what_the_user_set_stays(environ: dict[str, str], variables: set[str]) -> None:
    assert thread_variables(2, environ) == dict.fromkeys(variables, "2")
