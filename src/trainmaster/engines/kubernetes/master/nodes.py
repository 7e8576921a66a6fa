"""The nodes of a cluster, as far as we may read them: which are away, and what is free on each.

A user bound to `edit` in a namespace may read no node. Then none is known to be away before Kubernetes itself takes its pods away, and
nothing is known to be free: the scheduler's words alone explain a wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from trainmaster.engines.contract import Free
from trainmaster.engines.kubernetes.master import pod_status
from trainmaster.kube.client import Client
from trainmaster.kube.errors import KubeError
from trainmaster.kube.kinds import NODES, PODS
from trainmaster.kube.watching import follow

YOUNG = 10.0  # s that a look at what is free is good for
RIGHTS_AGAIN = 60.0  # s until it is looked again whether we may read nodes
_PLAIN = ("cpu", "memory", "ephemeral-storage", "pods")
log = logging.getLogger(__name__)

Size = dict[str, float]  # by Kubernetes' names; memory in bytes


@attrs.frozen(slots=True)
class Node:
    """The facts of a node that are looked at."""

    ready: bool
    open: bool
    has: Size
    labels: Mapping[str, str]


class Nodes:
    """`changed(node)` is called when a node is away, back or gone. `accelerator`: the resource that requests count as GPUs."""

    def __init__(self, client: Client, changed: Callable[[str], None], accelerator: str = "nvidia.com/gpu") -> None:
        self._client, self._changed, self._accelerator = client, changed, accelerator
        self._known: dict[str, Node] = {}
        self._removed: set[str] = set()
        self._synced = False
        self._free: list[Free] = []
        self._looked: float | None = None

    def away(self, node: str) -> bool:
        """Tell whether the node is known not to answer, or to have left the cluster."""
        if (known := self._known.get(node)) is not None:
            return not known.ready
        return self.gone(node)

    def gone(self, node: str) -> bool:
        """Tell whether the node was taken out of the cluster."""
        return (
            node in self._removed and node not in self._known
        )  # one that is not known yet may be new, and one may come back

    async def watch(self) -> None:
        """Follow the nodes, for as long as there are rights to."""
        while not await self._may("watch"):  # noqa: ASYNC110  it has to be asked
            await asyncio.sleep(RIGHTS_AGAIN)
        async for seen in follow(self._client, NODES):
            if seen.kind == "synced":
                self._synced = True
            elif seen.kind == "deleted":
                name = seen.object["metadata"]["name"]
                self._known.pop(name, None)
                self._removed.add(name)
                log.warning("node %s was taken out of the cluster", name)
                self._changed(name)
            elif seen.kind in ("added", "modified"):
                self._take(seen.object)

    def _take(self, node: Mapping[str, Any]) -> None:
        name, spec = node["metadata"]["name"], node.get("spec") or {}
        status = node.get("status") or {}
        current = Node(
            pod_status.condition(node, "Ready").get("status", "True") == "True",
            not spec.get("unschedulable"),
            size(status.get("allocatable") or {}),
            node["metadata"].get("labels") or {},
        )
        before = self._known.get(name)
        self._known[name] = current
        if before is not None and before.ready != current.ready:
            log.warning("node %s %s", name, "is back" if current.ready else "does not answer")
            self._changed(name)

    async def _may(self, verb: str) -> bool:
        try:
            return await self._client.review("list", NODES) and await self._client.review(verb, NODES)
        except KubeError:
            return False

    async def free(self) -> list[Free]:
        """Return what each node that takes pods has, and has free; nothing where nodes or the pods of all namespaces may not be read."""
        now = asyncio.get_running_loop().time()
        if self._looked is not None and now - self._looked < YOUNG:
            return self._free
        self._looked, self._free = now, []
        try:
            if not self._synced:
                if not await self._client.review("list", NODES):
                    return []
                for known in (await self._client.list(NODES))[0]:
                    self._take(known)
            if not await self._client.review("list", PODS, namespace="*"):
                return []
            pods, _ = await self._client.list(PODS, namespace="*")
        except KubeError as error:
            log.warning("what is free is not known: %s", error)
            return []
        used: dict[str, Size] = {}
        for pod in pods:
            if (pod.get("status") or {}).get("phase") not in pod_status.OVER and (node := pod_status.node_of(pod)):
                _add(used.setdefault(node, {}), asked(pod))
        self._free = [
            self._free_on(name, node, used.get(name, {}))
            for name, node in self._known.items()
            if node.open and node.ready
        ]
        return self._free

    def _free_on(self, name: str, node: Node, used: Mapping[str, float]) -> Free:
        rest = {resource: max(0, count - used.get(resource, 0)) for resource, count in node.has.items()}
        gpus = self._accelerator
        others = [
            resource
            for resource in node.has
            if resource not in (*_PLAIN, gpus) and not resource.startswith("hugepages-")
        ]
        return Free(
            name, node.has.get("cpu", 0), int(node.has.get("memory", 0)), int(node.has.get(gpus, 0)), rest.get("cpu", 0),
            int(rest.get("memory", 0)), int(rest.get(gpus, 0)), dict(node.labels),
            {resource: int(node.has[resource]) for resource in others}, {resource: int(rest[resource]) for resource in others},
        )  # fmt: skip


def size(quantities: Mapping[str, Any]) -> Size:
    """Return amounts of resources as numbers."""
    return {
        name: pod_status.cores(value) if name == "cpu" else pod_status.quantity(value)
        for name, value in quantities.items()
    }


def asked(pod: Mapping[str, Any]) -> Size:
    """Return what a pod takes of its node: its containers together, or the largest of those that run before them."""
    spec = pod.get("spec") or {}
    total: Size = {}
    for container in spec.get("containers") or ():
        _add(total, size((container.get("resources") or {}).get("requests") or {}))
    for container in spec.get("initContainers") or ():
        for name, count in size((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = max(total.get(name, 0), count)
    _add(total, size(spec.get("overhead") or {}))
    return total


def _add(total: Size, more: Mapping[str, float]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count
