"""Why YARN has not granted something yet, in words for a user: what was asked, what is in use and what is free."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from trainmaster.core.containers import Request
from trainmaster.core.machine.stimuli import Waiting
from trainmaster.core.spec.quantities import format_bytes
from trainmaster.engines.contract import Free, Queue
from trainmaster.engines.yarn.master.asks import GPU, MIB, label_of
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.yarn import ResourceManager


async def explain(
    manager: ResourceManager, queue: str, requests: Sequence[Request], left: y.ResourceProto, label: str = "",
    avoided: Collection[str] = (),
) -> Waiting:  # fmt: skip
    """Say what the largest of these requests waits for. `left`: what the user may still have in the queue; `label`: of a request that names
    none; `avoided`: hosts that are asked for no more.
    """
    nodes = await free(manager)
    answer = await manager.get_queue_info(y.GetQueueInfoRequestProto(queueName=queue))
    largest = max(requests, key=lambda request: (request.gpus, len(request.extended), request.memory, request.cores))
    return words(largest, len(requests), nodes, answer.queueInfo, left, label, avoided)


def words(
    request: Request, count: int, nodes: Sequence[Free], queue: y.QueueInfoProto, left: y.ResourceProto, label: str = "",
    avoided: Collection[str] = (),
) -> Waiting:  # fmt: skip
    """Choose the first obstacle, in this order: label, size of the nodes, the queue's limit, what is free on the nodes, the user's limit,
    others.
    """
    size = request_amount(request)
    need = f"{request.role}: {count} x {size}" if count > 1 else f"{request.task}: {size}"
    label = label_of(request.nodes.get("labels") or {}) or label
    labelled = [node for node in nodes if node.labels.get("label", "") == label]
    fitting = [node for node in labelled if node.node.rpartition(":")[0] not in avoided]
    if not fitting:
        obstacle = f"no node has the label {label}" if label else "the cluster has no node"
        if labelled:
            obstacle = f"the job avoids all nodes that it could have: {', '.join(node.node for node in labelled)}"
        return Waiting("nodes", need, "0 nodes", f"{need}: {obstacle}")
    if not any(_holds(_has(node), request) for node in fitting):
        most = amount(*_has(max(fitting, key=lambda node: (node.gpus, len(node.extended), node.memory))))
        return Waiting("nodes", need, "0 nodes", f"{need}: no node is that large; the largest has {most}")
    name, usage = queue.queueName, used_of(queue)
    limit = limit_of(queue, label)
    if limit is not None and not _holds(_minus(limit, usage), request):
        share = amount(*_minus(limit, usage))
        return Waiting(
            f"queue {name}", need, share,
            f"{need}: queue {name} is full; it has {amount(*usage)} of at most {amount(*limit)}, {share} are free",
        )  # fmt: skip
    if not any(_holds(_free_of(node), request) for node in fitting):
        best = max(fitting, key=lambda node: (node.free_gpus, len(node.free_extended), node.free_memory))
        free = amount(*_free_of(best))
        return Waiting(
            "nodes",
            need,
            free,
            f"{need}: no node of {len(fitting)} has that much free; the most is {free} on {best.node}",
        )
    if left.HasField("memory") and not _holds(_size(left), request):
        share = amount(*_size(left))
        return Waiting(
            f"queue {name}", need, share,
            f"{need}: the limit of one user in queue {name} is reached; {share} are left of yours, the queue has {amount(*usage)} in use",
        )  # fmt: skip
    pending = queue.queueStatistics.pendingContainers
    return Waiting(
        f"queue {name}", need, "",
        f"{need}: there is room, and the ResourceManager has not given it yet; {pending} containers are asked for in queue {name}",
    )  # fmt: skip


Size = tuple[int, float, int, Mapping[str, int]]  # memory in bytes, cores, GPUs, other resources by name


def _has(node: Free) -> Size:
    return node.memory, node.cores, node.gpus, node.extended


def _free_of(node: Free) -> Size:
    return node.free_memory, node.free_cores, node.free_gpus, node.free_extended


def _size(resource: y.ResourceProto) -> Size:
    return resource.memory * MIB, resource.virtual_cores, count(resource, GPU), extended(resource)


def _minus(size: Size, other: Size) -> Size:
    """Return what is left of `size` without `other`, nowhere below zero."""
    rest = {name: max(0, value - other[3].get(name, 0)) for name, value in size[3].items()}
    return max(0, size[0] - other[0]), max(0, size[1] - other[1]), max(0, size[2] - other[2]), rest


def used_of(queue: y.QueueInfoProto) -> Size:
    """Return what a queue's jobs have; of counted resources YARN does not tell it."""
    statistics = queue.queueStatistics
    return statistics.allocatedMemoryMB * MIB, statistics.allocatedVCores, 0, {}


def limit_of(queue: y.QueueInfoProto, label: str) -> Size | None:
    """Return the most that a queue may have of the nodes of a label; None where YARN does not tell it, as with schedulers other than the
    capacity scheduler.
    """
    for partition in queue.queueConfigurationsMap:
        if partition.partitionName == label and partition.queueConfigurations.HasField("effectiveMaxCapacity"):
            return _size(partition.queueConfigurations.effectiveMaxCapacity)
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
    """Explain why a master, which asks for `size`, was not started: by YARN's own words, with its figures."""

    def figure(name: str, other: str = "?") -> str:
        match = re.search(rf"{re.escape(name)} = {_RESOURCE}", diagnostics)
        return amount(int(match[1]) * MIB, int(match[2]), 0) if match else other

    for phrase, (words, limit, usage) in _LIMITS.items():
        if phrase in diagnostics:
            demand = figure("AM Resource Request", size)
            return f"{words.format(queue=queue.removeprefix('root.'))}: asked {demand}; used {figure(usage)} of {figure(limit)}"
    text = diagnostics.strip().splitlines()[0] if diagnostics.strip() not in ("", "N/A") else ""
    return re.sub(r"^\[[^]]*\] ", "", text)[:300] or f"it is in queue {queue.removeprefix('root.')}"


async def free(manager: ResourceManager) -> list[Free]:
    answer = await manager.get_cluster_nodes(y.GetClusterNodesRequestProto(nodeStates=[y.NS_RUNNING]))
    return [_free(report) for report in answer.nodeReports]


def queues(root: y.QueueInfoProto) -> list[Queue]:
    """List the queues that take jobs, from `root` down. A queue with children is only their sum, and takes no jobs."""
    if root.childQueues:
        return [queue for child in root.childQueues for queue in queues(child)]
    statistics = root.queueStatistics
    return [
        Queue(
            root.queueName, root.capacity, root.maximumCapacity, max(0.0, root.currentCapacity), statistics.allocatedMemoryMB * MIB,
            statistics.availableMemoryMB * MIB, statistics.numAppsRunning, statistics.numAppsPending, root.state == y.Q_RUNNING,
            _master_share(root), tuple(root.accessibleNodeLabels),
        )
    ]  # fmt: skip


def _master_share(queue: y.QueueInfoProto) -> float:
    """Return the part of a queue that masters may have, 1 where YARN does not tell it."""
    configurations = [
        partition.queueConfigurations for partition in queue.queueConfigurationsMap if not partition.partitionName
    ]
    return next((entry.maxAMPercentage for entry in configurations if entry.HasField("maxAMPercentage")), 1.0)


def _free(report: y.NodeReportProto) -> Free:
    capacity, usage = _size(report.capability), _size(report.used)
    rest = (capacity[0] - usage[0], capacity[1] - usage[1], capacity[2] - usage[2])
    others = {name: value - usage[3].get(name, 0) for name, value in capacity[3].items()}
    return Free(
        f"{report.nodeId.host}:{report.nodeId.port}", capacity[1], capacity[0], capacity[2], rest[1], rest[0], rest[2],
        {"label": report.node_labels[0]} if any(report.node_labels) else {}, capacity[3], others,
    )  # fmt: skip


def count(resource: y.ResourceProto, name: str) -> int:
    """Return how much a size holds of a countable resource."""
    return next((entry.value for entry in resource.resource_value_map if entry.key == name), 0)


def extended(resource: y.ResourceProto) -> dict[str, int]:
    """Return what a size holds of resources other than cores, memory and GPUs."""
    return {
        entry.key: entry.value
        for entry in resource.resource_value_map
        if entry.value and entry.key not in ("memory-mb", "vcores", GPU)
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
