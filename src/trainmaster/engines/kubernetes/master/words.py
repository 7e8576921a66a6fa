"""What of all that the pods of a job wait for is told: one line, of the trouble that matters most.

What was refused comes first, then what nodes cannot make ready, then what is not placed. Events are read only for a pod that is being made
ready for long and says nothing of why, one pod at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainmaster.core.machine.stimuli import Waiting
from trainmaster.engines.contract import Free, Request
from trainmaster.engines.kubernetes.master import pod_status as ends
from trainmaster.engines.kubernetes.master import waiting
from trainmaster.kube.client import Client
from trainmaster.kube.errors import KubeError
from trainmaster.kube.kinds import EVENTS

if TYPE_CHECKING:
    from trainmaster.engines.kubernetes.master.engine import Held, Key

log = logging.getLogger(__name__)
Row = tuple[int, Request, waiting.Trouble]  # the lower the number, the more it matters
_DENIED, _PLACED, _UNPLACED = range(3)


class Explained:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._told = False

    async def look(
        self, pods: Mapping[Key, Held], denied: Sequence[tuple[Request, waiting.Trouble]], nodes: Sequence[Free], now: float,
        away: str, ran: set[str],
    ) -> tuple[Waiting | None, list[tuple[Key, str]]]:  # fmt: skip
        """What is to be told, and the pods that will never run, each with why. `denied`: of asks that are put off. `away`: why the API
        server cannot be asked. `ran`: roles of which a container ran; nothing of these is hopeless.
        """
        if away:
            self._told = True
            return Waiting("API server", "", "", f"the API server cannot be asked: {away}"), []
        rows: list[Row] = [(_DENIED, *row) for row in denied]
        hopeless: list[tuple[Key, str]] = []
        seen: dict[tuple[str, int, str], waiting.Trouble] = {}  # many pods wait for the same, and there are many nodes
        for key, held in list(pods.items()):
            if held.returned or held.request is None or ends.started(held.pod):
                continue
            placed = ends.condition(held.pod, "PodScheduled")
            unplaced = placed.get("reason") == "Unschedulable"
            same = (held.request.role, held.request.memory, str(placed.get("message")))
            known = seen.get(same) if unplaced else None
            trouble = known or waiting.of_pod(held.pod, now - held.since, nodes, held.request)
            if trouble is None:
                held.trouble = None
                continue
            if unplaced:
                seen[same] = trouble
            if held.trouble is None or held.trouble[0] != trouble.resource:
                held.trouble = trouble.resource, now
            if (
                trouble.hopeless is not None
                and now - held.trouble[1] >= trouble.hopeless
                and held.request.role not in ran
            ):
                hopeless.append((key, trouble.detail))
            rows.append((_PLACED if ends.node_of(held.pod) else _UNPLACED, held.request, trouble))
        if not rows and (slow := self._slow(pods, now)) is not None and slow.request is not None:
            rows.append((_PLACED, slow.request, await self._events(slow)))
        return self._chosen(rows), hopeless

    def _chosen(self, rows: Sequence[Row]) -> Waiting | None:
        if not rows:
            told, self._told = self._told, False
            return waiting.NOTHING if told else None
        self._told = True
        _, first, trouble = min(rows, key=lambda row: (row[0], -row[1].gpus, -row[1].memory, row[1].index))
        same = [one for _, one, other in rows if one.role == first.role and other.detail == trouble.detail]
        return waiting.words(same, trouble)

    def _slow(self, pods: Mapping[Key, Held], now: float) -> Held | None:
        """The pod that is being made ready the longest."""
        found = [
            held for held in pods.values()
            if held.placed is not None and now - held.placed > waiting.SLOW and not (held.returned or ends.started(held.pod))
        ]  # fmt: skip
        return min(found, key=lambda held: held.placed or 0.0, default=None)

    async def _events(self, held: Held) -> waiting.Trouble:
        try:
            events, _ = await self._client.list(EVENTS, fields=f"involvedObject.uid={held.uid}")
        except KubeError as error:
            log.debug("the events of %s cannot be read: %s", held.name, error)
            events = []
        return waiting.of_events(held.pod, events)
