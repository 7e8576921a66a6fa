"""The request for the container of a task: what it needs, and what its gang can begin without."""

from __future__ import annotations

from trainmaster.core.containers import Request
from trainmaster.core.machine.state import State, Task, elastic_roles


def request_of(
    state: State, task: Task, serial: int, program_memory: int, more_memory: int = 0, hosts: tuple[str, ...] = ()
) -> Request:
    """Return the request for the container that `task` needs. `more_memory`: bytes beside the program's; `hosts`: of its data."""
    job, role, group = state.known_job, state.role(task), state.groups[task.group]
    unsized = group.gang and group.sizes is None
    elastic = group.elastic if group.sizes is not None else elastic_roles(job, group)
    return Request(
        task.key, serial, task.role, task.index, program_memory + more_memory, role.resources.cores, role.resources.gpus,
        job.priority * 1000 + role.priority, f"group-{group.number}" if unsized else "", role.replicas.least if unsized else 0,
        {"labels": role.nodes.labels, "exclude": list(role.nodes.exclude)}, program_memory, role.resources.extended,
        hosts, task.is_spare, role.replicas.min if task.role in elastic else 0, job.priority,
    )  # fmt: skip
