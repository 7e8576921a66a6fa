"""The nodes of a cluster as a master speaks to them: containers started, and looked at.

Each node takes calls with a token that the ResourceManager gives once for it. A connection is kept a node, and made anew when its token
changes. Many nodes are called at once, each with all of its containers in one call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

from trainmaster.hadoop.credentials import Token
from trainmaster.hadoop.errors import HadoopError
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.yarn import NodeManager, node_text, token_of, why

AT_ONCE = 64  # nodes called at the same time
WITHIN = 60.0  # s for a node to take its containers


class Nodes:
    def __init__(self) -> None:
        self._tokens: dict[str, Token] = {}
        self._open: dict[str, NodeManager] = {}
        self._calls = asyncio.Semaphore(AT_ONCE)

    def take(self, tokens: Iterable[y.NMTokenProto]) -> None:
        """Tokens that the ResourceManager gave."""
        for given in tokens:
            node = node_text(given.nodeId)
            self._tokens[node] = token_of(given.token)
            self._open.pop(node, None)

    async def start(
        self, containers: Sequence[tuple[y.ContainerProto, y.ContainerLaunchContextProto]]
    ) -> dict[int, str]:
        """Start containers of one node; of those that were not, by number, why."""
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
            told = str(error) or f"{node} did not answer within {WITHIN:.0f} s"
            return {container.id.id: told for container, _ in containers}
        return {one.container_id.id: why(one.exception) for one in answer.failed_requests}

    async def running(self, containers: Sequence[y.ContainerProto]) -> set[int]:
        """The numbers of those that run, or may run: a node that does not answer has not said otherwise."""
        nodes: dict[str, list[y.ContainerProto]] = {}
        for container in containers:
            nodes.setdefault(node_text(container.nodeId), []).append(container)
        found = await asyncio.gather(*(self._running(node, here) for node, here in nodes.items()))
        return set().union(*found)

    async def _running(self, node: str, containers: Sequence[y.ContainerProto]) -> set[int]:
        request = y.GetContainerStatusesRequestProto(container_id=[one.id for one in containers])
        try:
            async with self._calls, asyncio.timeout(WITHIN / 6):
                answer = await self._of(node).get_container_statuses(request)
        except (HadoopError, TimeoutError):
            return {one.id.id for one in containers}
        return {one.container_id.id for one in answer.status if one.state == y.C_RUNNING}

    def _of(self, node: str) -> NodeManager:
        if node not in self._open:
            self._open[node] = NodeManager.of(node, self._tokens[node])
        return self._open[node]

    async def close(self) -> None:
        for one in self._open.values():
            with contextlib.suppress(HadoopError, OSError):
                await one.close()
