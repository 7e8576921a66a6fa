"""Asks in YARN's words: sizes, priorities, labels, places, and the number by which the master knows whose an ask is.

An ask is one row for any node (`*`). Where a task's data are on some hosts, the ask has also a row for each of these hosts and for each of
their racks, all of the same number. YARN grants one container for all rows of a number: on such a host if one has room within a few beats,
else on such a rack, else anywhere (relaxed locality). Rows are absolute; only the row `*` may have a label.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from trainmaster.core.containers import Request, is_growth
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Job
from trainmaster.hadoop.errors import RemoteError
from trainmaster.hadoop.proto import yarn_pb2 as y

GPU = "yarn.io/gpu"
MIB = 2**20
INT, LONG = 2**31 - 1, 2**63 - 1  # the largest numbers that YARN's messages hold; no cluster has as much
_SERIALS = 1 << 24
_MIDDLE = 100  # the priority of a role that names none; YARN serves lower numbers first
_GROWTH = 2 * _MIDDLE  # added for containers without which a gang can begin: they come after all that are needed
ANYWHERE = "*"
LABEL = "label"  # the only key that `nodes.labels` may have, because a node of YARN is in one partition


class Numbers:
    """Allocation request ids: one for each (task, serial), the same for every master of the job."""

    def __init__(self, job: Job) -> None:
        self._tasks = [f"{role.name}:{index}" for role in job.roles.values() for index in range(role.replicas.max)]
        self._places = {task: place for place, task in enumerate(self._tasks)}

    def of(self, task: str, serial: int) -> int:
        return (self._places[task] + 1) * _SERIALS + serial

    def key(self, number: int) -> tuple[str, int] | None:
        """Return the (task, serial) of a number; None for a number that is not ours."""
        place, serial = divmod(number, _SERIALS)
        return (self._tasks[place - 1], serial) if 0 < place <= len(self._tasks) else None


Size = tuple[bytes, str]  # resources and label: the same in all asks for containers of one kind
Rows = tuple[y.ResourceRequestProto, ...]


def ask_for(
    number: int, request: Request, racks: Mapping[str, str] | None = None, units: Mapping[str, str] | None = None
) -> Rows:
    """Return the rows of an ask. `racks`: host -> rack, of the cluster's nodes; other hosts get no row. `units`: of resource types."""
    known = racks or {}
    hosts = [host for host in request.hosts if host in known]
    names = [*hosts, *dict.fromkeys(known[host] for host in hosts), ANYWHERE]
    rows = tuple(
        y.ResourceRequestProto(
            priority=y.PriorityProto(priority=priority_of(request)), resource_name=name, capability=resource_of(request, units),
            num_containers=1, relax_locality=True, allocation_request_id=number,
        )
        for name in names
    )  # fmt: skip
    if label := label_of(request.nodes.get("labels") or {}):
        rows[-1].node_label_expression = label
    return rows


def withdrawal(rows: Iterable[y.ResourceRequestProto]) -> Rows:
    """Return the rows that withdraw an ask."""
    withdrawn = []
    for row in rows:
        copy = y.ResourceRequestProto()
        copy.CopyFrom(row)
        copy.num_containers = 0
        withdrawn.append(copy)
    return tuple(withdrawn)


def priority_of(request: Request) -> int:
    """Return YARN's number for the role's part of the priority, the only part that counts among the asks of one application."""
    role = (request.priority + 500) % 1000 - 500
    return max(1, min(2 * _MIDDLE, _MIDDLE - role)) + (_GROWTH if is_growth(request) else 0)


def resource_of(request: Request, units: Mapping[str, str] | None = None) -> y.ResourceProto:
    return resource(request.memory, request.cores, request.gpus, request.extended, units)


def resource(
    memory: int,
    cores: float,
    gpus: int = 0,
    others: Mapping[str, int] | None = None,
    units: Mapping[str, str] | None = None,
) -> y.ResourceProto:
    """Return a size as YARN's message. `memory` in bytes; `others` in the units that the cluster has for each (YARN would convert from any
    other).
    """
    mib, vcores = math.ceil(memory / MIB), min(max(1, math.ceil(cores)), INT)
    message = y.ResourceProto(memory=mib, virtual_cores=vcores)
    message.resource_value_map.add(key="memory-mb", value=mib, units="Mi", type=y.COUNTABLE)
    message.resource_value_map.add(key="vcores", value=vcores, units="", type=y.COUNTABLE)
    for name, count in {**({GPU: gpus} if gpus else {}), **(others or {})}.items():
        message.resource_value_map.add(
            key=name, value=min(count, LONG), units=(units or {}).get(name, ""), type=y.COUNTABLE
        )
    return message


def label_of(labels: Mapping[str, str]) -> str:
    """Return the partition that a role asks for, or "". Raises BadInput for any other label."""
    if unknown := sorted(labels.keys() - {LABEL}):
        raise BadInput(
            f"nodes of YARN have no {unknown[0]}: a node is in one partition",
            place=f"nodes.labels.{unknown[0]}", mend=f"name the partition: labels: {{{LABEL}: NAME}}", anchor="labels",
        )  # fmt: skip
    return labels.get(LABEL, "")


def is_of_an_ask(error: RemoteError) -> bool:
    """Tell whether the ResourceManager refuses an ask because of the ask's content."""
    return error.name.startswith("Invalid") and "ResourceRequest" in error.name


def size_of(rows: Rows) -> Size:
    return rows[-1].capability.SerializeToString(deterministic=True), rows[-1].node_label_expression


def fits(size: y.ResourceProto, largest: y.ResourceProto) -> bool:
    """Tell whether a container of this size is ever granted, where `largest` is the largest."""
    most = {entry.key: entry.value for entry in largest.resource_value_map}
    counted = all(entry.value <= most.get(entry.key, 0) for entry in size.resource_value_map if entry.value)
    return size.memory <= largest.memory and size.virtual_cores <= largest.virtual_cores and counted
