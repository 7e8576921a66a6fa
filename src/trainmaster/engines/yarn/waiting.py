"""Why YARN has not granted something yet, in words, with what was asked, what is used and what is free."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainmaster.core.quantities import format_bytes
from trainmaster.core.stimuli import Waiting
from trainmaster.engines.contract import Free, Queue, Request
from trainmaster.engines.yarn.asks import GPU, MIB, label_of
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.yarn import ResourceManager


async def explain(manager: ResourceManager, queue: str, requests: Sequence[Request]) -> Waiting:
    """What the largest of these waits for."""
    nodes = await free(manager)
    answer = await manager.get_queue_info(y.GetQueueInfoRequestProto(queueName=queue))
    return words(
        max(requests, key=lambda one: (one.gpus, one.memory, one.cores)), len(requests), nodes, answer.queueInfo
    )


def words(request: Request, count: int, nodes: Sequence[Free], queue: y.QueueInfoProto) -> Waiting:
    """The first thing that is in the way: a label, every node's size, every node's free room, the queue's share."""
    asked = amount(request.memory, request.cores, request.gpus)
    of = f"{request.role}: {count} x {asked}" if count > 1 else f"{request.task}: {asked}"
    label = label_of(request.nodes.get("labels") or {})
    fitting = [node for node in nodes if node.labels.get("label", "") == label]
    if not fitting:
        return Waiting("nodes", of, "0 nodes", f"no node has the label {label}" if label else "the cluster has no node")
    if not any(_holds(node.memory, node.cores, node.gpus, request) for node in fitting):
        most = max(fitting, key=lambda node: (node.gpus, node.memory))
        return Waiting(
            "nodes",
            of,
            "0 nodes",
            f"{of}: no node is that large; the largest has {amount(most.memory, most.cores, most.gpus)}",
        )
    statistics = queue.queueStatistics
    share = f"{format_bytes(statistics.allocatedMemoryMB * MIB)} used, {format_bytes(statistics.availableMemoryMB * MIB)} free"
    if not any(_holds(node.free_memory, node.free_cores, node.free_gpus, request) for node in fitting):
        most = max(fitting, key=lambda node: (node.free_gpus, node.free_memory))
        free = amount(most.free_memory, most.free_cores, most.free_gpus)
        return Waiting(
            "nodes", of, free, f"{of}: no node of {len(fitting)} has that much free; the most is {free} on {most.node}"
        )
    percent = round(queue.currentCapacity * 100)
    return Waiting(
        f"queue {queue.queueName}", of, share,
        f"queue {queue.queueName} is at {percent} % of its share ({share}); its limit, or that of a user in it, is reached",
    )  # fmt: skip


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
}


def unstarted(diagnostics: str, queue: str) -> str:
    """YARN's own words for why a master was not started, with its figures."""

    def figure(name: str) -> str:
        found = re.search(rf"{re.escape(name)} = {_RESOURCE}", diagnostics)
        return amount(int(found[1]) * MIB, int(found[2]), 0) if found else "?"

    for said, (words, limit, used) in _LIMITS.items():
        if said in diagnostics:
            asked = figure("AM Resource Request")
            return f"{words.format(queue=queue)}: asked {asked}; used {figure(used)} of {figure(limit)}"
    said = diagnostics.strip().splitlines()[0] if diagnostics.strip() not in ("", "N/A") else ""
    return re.sub(r"^\[[^]]*\] ", "", said)[:300] or f"it is in queue {queue}"


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
        )
    ]  # fmt: skip


def _free(report: y.NodeReportProto) -> Free:
    has, used = report.capability, report.used
    gpus, taken = count(has, GPU), count(used, GPU)
    return Free(
        f"{report.nodeId.host}:{report.nodeId.port}", has.virtual_cores, has.memory * MIB, gpus,
        has.virtual_cores - used.virtual_cores, (has.memory - used.memory) * MIB, gpus - taken,
        {"label": report.node_labels[0]} if any(report.node_labels) else {},
    )  # fmt: skip


def count(resource: y.ResourceProto, name: str) -> int:
    """How much it holds of a countable resource."""
    return next((one.value for one in resource.resource_value_map if one.key == name), 0)


def _holds(memory: int, cores: float, gpus: int, request: Request) -> bool:
    return memory >= request.memory and cores >= request.cores and gpus >= request.gpus


def amount(memory: int, cores: float, gpus: int) -> str:
    return f"{format_bytes(memory)}, {cores:g} cores" + (f", {gpus} GPUs" if gpus else "")
