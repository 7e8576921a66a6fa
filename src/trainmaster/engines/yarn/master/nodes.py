"""The nodes of a cluster as a master speaks to them: it starts containers there, and asks which ones run.

Each node takes calls with a token that the ResourceManager gives once for it. The master keeps one connection for each node, and makes a
new one when the node's token changes. Many nodes are called at once, each with all of its containers in one call.

Containers go by their whole id, as text: the number in it counts from 1 again in each attempt of the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from trainmaster.core.spec.job import Job
from trainmaster.hadoop.errors import HadoopError
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security.credentials import Token
from trainmaster.hadoop.yarn import NodeManager, ResourceManager, container_id_text, node_text, token_of, why

AT_ONCE = 64  # nodes called at the same time
WITHIN = 60.0  # seconds for a node to take its containers
RACKS_WITHIN = 5.0  # seconds to learn which nodes are on which racks
FAILURES = 3  # of containers on one node, by no fault of a program's, until the node is avoided
log = logging.getLogger(__name__)


class Nodes:
    """The nodes for which a master has tokens. `protection`: what the master takes on the wire, as `conf.rpc_protection` gives it."""

    def __init__(self, protection: Sequence[str]) -> None:
        self._protection = protection
        self._tokens: dict[str, Token] = {}
        self._open: dict[str, NodeManager] = {}
        self._replaced: set[NodeManager] = set()  # connections whose token was replaced by a newer one
        self._closing: set[asyncio.Task[None]] = set()
        self._calls = asyncio.Semaphore(AT_ONCE)

    def take(self, tokens: Iterable[y.NMTokenProto]) -> None:
        """Take the tokens that the ResourceManager gave."""
        for node_token in tokens:
            node = node_text(node_token.nodeId)
            self._tokens[node] = token_of(node_token.token)
            if (replaced := self._open.pop(node, None)) is not None:
                self._replaced.add(replaced)
                task = asyncio.create_task(self._close_unused(replaced))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def _close_unused(self, replaced: NodeManager) -> None:
        """Close a connection when no call can be under way on it any more."""
        await asyncio.sleep(WITHIN)
        self._replaced.discard(replaced)
        await _close(replaced)

    async def start(
        self, containers: Sequence[tuple[y.ContainerProto, y.ContainerLaunchContextProto]]
    ) -> dict[str, str]:
        """Start containers of one node. Return the reason of each that did not start, by container."""
        node = node_text(containers[0][0].nodeId)
        request = y.StartContainersRequestProto()
        for container, context in containers:
            request.start_container_request.add(
                container_launch_context=context, container_token=container.container_token
            )
        try:
            async with self._calls, asyncio.timeout(WITHIN):
                answer = await self._of(node).start_containers(request)
        except (HadoopError, TimeoutError) as error:
            failure = str(error) or f"{node} did not answer within {WITHIN:.0f} s"
            return {container_id_text(container.id): failure for container, _ in containers}
        return {container_id_text(request.container_id): why(request.exception) for request in answer.failed_requests}

    async def running(self, containers: Sequence[y.ContainerProto]) -> set[str]:
        """Return the containers that run, or may run: those on a node that cannot be asked, or does not answer, may run."""
        nodes: dict[str, list[y.ContainerProto]] = {}
        for container in containers:
            nodes.setdefault(node_text(container.nodeId), []).append(container)
        by_node = await asyncio.gather(*(self._running(node, group) for node, group in nodes.items()))
        return set().union(*by_node)

    async def _running(self, node: str, containers: Sequence[y.ContainerProto]) -> set[str]:
        request = y.GetContainerStatusesRequestProto(container_id=[container.id for container in containers])
        if node not in self._tokens:  # the ResourceManager gave no token for a container that it listed late
            return {container_id_text(container.id) for container in containers}
        try:
            async with self._calls, asyncio.timeout(WITHIN / 6):
                answer = await self._of(node).get_container_statuses(request)
        except (HadoopError, TimeoutError):
            return {container_id_text(container.id) for container in containers}
        return {container_id_text(status.container_id) for status in answer.status if status.state == y.C_RUNNING}

    def _of(self, node: str) -> NodeManager:
        if node not in self._open:
            self._open[node] = NodeManager.of(node, self._tokens[node], self._protection)
        return self._open[node]

    async def close(self) -> None:
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        for connection in (*self._open.values(), *self._replaced):
            await _close(connection)


async def _close(connection: NodeManager) -> None:
    with contextlib.suppress(HadoopError, OSError):
        await connection.close()


class Avoided:
    """The hosts that are asked for no more: those that the job excludes, and those on which containers failed repeatedly.

    At most half of the cluster is avoided for failures: where everything fails everywhere it is not the nodes' fault, and a job that avoids
    all of them waits for ever. Beyond that the host that failed first is tried again.
    """

    def __init__(self, excluded: Iterable[str] = ()) -> None:
        self._excluded = {_host(node) for node in excluded}
        self._failures: Counter[str] = Counter()
        self._failing: dict[str, None] = {}
        self._forgiven: set[str] = set()

    def blame(self, node: str, nodes: int) -> None:
        """Count a container that failed on `node`, in a cluster of `nodes` nodes."""
        host = _host(node)
        self._failures[host] += 1
        if self._failures[host] < FAILURES or host in self._failing:
            return
        log.warning("node %s is avoided: %d containers failed there", host, self._failures[host])
        self._failing[host] = None
        self._forgiven.discard(host)
        while len(self._failing) > nodes // 2:
            first = next(iter(self._failing))
            log.warning("node %s is tried again: at most half of %d nodes are avoided", first, nodes)
            del self._failing[first]
            self._failures[first] = 0
            self._forgiven.add(first)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted(self._excluded | self._failing.keys()))

    def message(self) -> y.ResourceBlacklistRequestProto | None:
        """Return what each beat says of these hosts; None where there are none."""
        forgiven = self._forgiven - self._excluded
        if not self.hosts and not forgiven:
            return None
        return y.ResourceBlacklistRequestProto(blacklist_additions=self.hosts, blacklist_removals=sorted(forgiven))


def _host(node: str) -> str:
    """Return the host of a node that is written with or without its port."""
    host, _, port = node.rpartition(":")
    return host if host and port.isdigit() else node


def excluded(job: Job) -> set[str]:
    """Return the nodes that all roles exclude: YARN knows exclusions of a whole application alone."""
    return set.intersection(*(set(role.nodes.exclude) for role in job.roles.values()))


async def racks(manager: ResourceManager) -> Mapping[str, str]:
    """Return host -> rack of the nodes that run; nothing where that cannot be had soon, because the caller can do without it."""
    try:
        async with asyncio.timeout(RACKS_WITHIN):
            answer = await manager.get_cluster_nodes(y.GetClusterNodesRequestProto(nodeStates=[y.NS_RUNNING]))
    except (HadoopError, TimeoutError) as error:
        log.warning("which nodes are near the data is not known: %s", str(error) or "no answer")
        return {}
    return {report.nodeId.host: report.rackName for report in answer.nodeReports}
