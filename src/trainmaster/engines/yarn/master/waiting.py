"""Why YARN has not granted something yet, in words, with what was asked, what is used and what is free."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from trainmaster.core.machine.stimuli import Waiting
from trainmaster.core.spec.quantities import format_bytes
from trainmaster.engines.contract import Free, Queue, Request
from trainmaster.engines.yarn.master.asks import GPU, MIB, label_of
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.yarn import ResourceManager


async def explain(
    manager: ResourceManager, queue: str, requests: Sequence[Request], left: y.ResourceProto, label: str = "",
    avoided: Collection[str] = (),
) -> Waiting:  # fmt: skip
    """What the largest of these waits for. `left`: what the user may still have in the queue; `label`: of a request that names none;
    `avoided`: hosts that are asked for no more.
    """
    nodes = await free(manager)
    answer = await manager.get_queue_info(y.GetQueueInfoRequestProto(queueName=queue))
    largest = max(requests, key=lambda one: (one.gpus, len(one.extended), one.memory, one.cores))
    return words(largest, len(requests), nodes, answer.queueInfo, left, label, avoided)


def words(
    request: Request, count: int, nodes: Sequence[Free], queue: y.QueueInfoProto, left: y.ResourceProto, label: str = "",
    avoided: Collection[str] = (),
) -> Waiting:  # fmt: skip
    """The first thing in the way: label, size of the nodes, the queue's limit, what is free on the nodes, the user's limit, others."""
    asked = request_amount(request)
    of = f"{request.role}: {count} x {asked}" if count > 1 else f"{request.task}: {asked}"
    label = label_of(request.nodes.get("labels") or {}) or label
    there = [node for node in nodes if node.labels.get("label", "") == label]
    fitting = [node for node in there if node.node.rpartition(":")[0] not in avoided]
    if not fitting:
        none = f"no node has the label {label}" if label else "the cluster has no node"
        if there:
            none = f"the job avoids all nodes that it could have: {', '.join(node.node for node in there)}"
        return Waiting("nodes", of, "0 nodes", f"{of}: {none}")
    if not any(_holds(_has(node), request) for node in fitting):
        most = amount(*_has(max(fitting, key=lambda node: (node.gpus, len(node.extended), node.memory))))
        return Waiting("nodes", of, "0 nodes", f"{of}: no node is that large; the largest has {most}")
    name, used = queue.queueName, used_of(queue)
    limit = limit_of(queue, label)
    if limit is not None and not _holds(_minus(limit, used), request):
        share = amount(*_minus(limit, used))
        return Waiting(
            f"queue {name}", of, share,
            f"{of}: queue {name} is full; it has {amount(*used)} of at most {amount(*limit)}, {share} are free",
        )  # fmt: skip
    if not any(_holds(_free_of(node), request) for node in fitting):
        best = max(fitting, key=lambda node: (node.free_gpus, len(node.free_extended), node.free_memory))
        free = amount(*_free_of(best))
        return Waiting(
            "nodes", of, free, f"{of}: no node of {len(fitting)} has that much free; the most is {free} on {best.node}"
        )
    if left.HasField("memory") and not _holds(_size(left), request):
        share = amount(*_size(left))
        return Waiting(
            f"queue {name}", of, share,
            f"{of}: the limit of one user in queue {name} is reached; {share} are left of yours, the queue has {amount(*used)} in use",
        )  # fmt: skip
    pending = queue.queueStatistics.pendingContainers
    return Waiting(
        f"queue {name}", of, "",
        f"{of}: there is room, and the ResourceManager has not given it yet; {pending} containers are asked for in queue {name}",
    )  # fmt: skip


Size = tuple[int, float, int, Mapping[str, int]]  # memory in bytes, cores, GPUs, other resources by name


def _has(node: Free) -> Size:
    return node.memory, node.cores, node.gpus, node.extended


def _free_of(node: Free) -> Size:
    return node.free_memory, node.free_cores, node.free_gpus, node.free_extended


def _size(resource: y.ResourceProto) -> Size:
    return resource.memory * MIB, resource.virtual_cores, count(resource, GPU), extended(resource)


def _minus(one: Size, other: Size) -> Size:
    """What is left of one, not less than nothing."""
    rest = {name: max(0, value - other[3].get(name, 0)) for name, value in one[3].items()}
    return max(0, one[0] - other[0]), max(0, one[1] - other[1]), max(0, one[2] - other[2]), rest


def used_of(queue: y.QueueInfoProto) -> Size:
    """What a queue's jobs have; of counted resources YARN does not tell."""
    numbers = queue.queueStatistics
    return numbers.allocatedMemoryMB * MIB, numbers.allocatedVCores, 0, {}


def limit_of(queue: y.QueueInfoProto, label: str) -> Size | None:
    """The most that a queue may have of the nodes of a label; None where that is not told, as by schedulers other than the capacity
    scheduler."""
    for one in queue.queueConfigurationsMap:
        if one.partitionName == label and one.queueConfigurations.HasField("effectiveMaxCapacity"):
            return _size(one.queueConfigurations.effectiveMaxCapacity)
    return None


_RESOURCE = r"<memory:(\d+), vCores:(\d+)[^>]*>"
_LIMITS = {
    "Queue's AM resource limit exceeded": (
        "the share of queue {queue} for masters is reached",
        "Queue Resource Limit for AM",
        "Queue AM Resource Usage",
    ),
    "User's AM resource limit exceeded": (
        "your share of queue {queue} for masters is reached",
        "User AM Resource Limit of the queue",
        "User AM Resource Usage",
    ),
    "waiting for resources to be assigned for AM": (
        "it waits for a node of queue {queue} with room for it",
        "Queue's max capacity (absolute resource)",
        "Queue's used capacity (absolute resource)",
    ),
}


def unstarted(diagnostics: str, queue: str, size: str) -> str:
    """Why a master, which asks for `size`, was not started: by YARN's own words, with its figures."""

    def figure(name: str, other: str = "?") -> str:
        found = re.search(rf"{re.escape(name)} = {_RESOURCE}", diagnostics)
        return amount(int(found[1]) * MIB, int(found[2]), 0) if found else other

    for said, (words, limit, used) in _LIMITS.items():
        if said in diagnostics:
            asked = figure("AM Resource Request", size)
            return f"{words.format(queue=queue.removeprefix('root.'))}: asked {asked}; used {figure(used)} of {figure(limit)}"
    said = diagnostics.strip().splitlines()[0] if diagnostics.strip() not in ("", "N/A") else ""
    return re.sub(r"^\[[^]]*\] ", "", said)[:300] or f"it is in queue {queue.removeprefix('root.')}"


async def free(manager: ResourceManager) -> list[Free]:
    answer = await manager.get_cluster_nodes(y.GetClusterNodesRequestProto(nodeStates=[y.NS_RUNNING]))
    return [_free(report) for report in answer.nodeReports]


def queues(found: y.QueueInfoProto) -> list[Queue]:
    """A queue and all below it; a queue with children is only their sum, and takes no jobs."""
    if found.childQueues:
        return [queue for child in found.childQueues for queue in queues(child)]
    numbers = found.queueStatistics
    return [
        Queue(
            found.queueName, found.capacity, found.maximumCapacity, max(0.0, found.currentCapacity), numbers.allocatedMemoryMB * MIB,
            numbers.availableMemoryMB * MIB, numbers.numAppsRunning, numbers.numAppsPending, found.state == y.Q_RUNNING,
            _masters(found), tuple(found.accessibleNodeLabels),
        )
    ]  # fmt: skip


def _masters(queue: y.QueueInfoProto) -> float:
    """The part of a queue that masters may have, 1 where that is not told."""
    told = [one.queueConfigurations for one in queue.queueConfigurationsMap if not one.partitionName]
    return next((one.maxAMPercentage for one in told if one.HasField("maxAMPercentage")), 1.0)


def _free(report: y.NodeReportProto) -> Free:
    has, used = _size(report.capability), _size(report.used)
    rest = (has[0] - used[0], has[1] - used[1], has[2] - used[2])
    others = {name: value - used[3].get(name, 0) for name, value in has[3].items()}
    return Free(
        f"{report.nodeId.host}:{report.nodeId.port}", has[1], has[0], has[2], rest[1], rest[0], rest[2],
        {"label": report.node_labels[0]} if any(report.node_labels) else {}, has[3], others,
    )  # fmt: skip


def count(resource: y.ResourceProto, name: str) -> int:
    """How much it holds of a countable resource."""
    return next((one.value for one in resource.resource_value_map if one.key == name), 0)


def extended(resource: y.ResourceProto) -> dict[str, int]:
    """What it holds of resources beside cores, memory and GPUs."""
    return {
        one.key: one.value
        for one in resource.resource_value_map
        if one.value and one.key not in ("memory-mb", "vcores", GPU)
    }


def _holds(size: Size, request: Request) -> bool:
    memory, cores, gpus, others = size
    plain = memory >= request.memory and cores >= request.cores and gpus >= request.gpus
    return plain and all(others.get(name, 0) >= count for name, count in request.extended.items())


def request_amount(request: Request) -> str:
    return amount(request.memory, request.cores, request.gpus, request.extended)


def amount(memory: int, cores: float, gpus: int, others: Mapping[str, int] | None = None) -> str:
    counted = [*([f"{gpus} GPUs"] if gpus else []), *(f"{count} {name}" for name, count in (others or {}).items())]
    return ", ".join([format_bytes(memory), f"{cores:g} cores", *counted])
