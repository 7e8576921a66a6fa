"""Choose the one reason for waiting that a user should read: one line, of the trouble that matters most.

Refused pods come first, then pods that nodes cannot make ready, then pods that are not placed. Events are read only for a pod that is being
made ready for long and says nothing of why, one pod at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainmaster.core.containers import Request
from trainmaster.core.machine.stimuli import Key, Waiting
from trainmaster.engines.contract import Free
from trainmaster.engines.kubernetes.master import pod_status, waiting
from trainmaster.kube.client import Client
from trainmaster.kube.errors import KubeError
from trainmaster.kube.kinds import EVENTS

if TYPE_CHECKING:
    from trainmaster.engines.kubernetes.master.engine import PodRecord

log = logging.getLogger(__name__)
Row = tuple[int, Request, waiting.Trouble]  # the lower the number, the more it matters
_DENIED, _PLACED, _UNPLACED = range(3)


class WaitingReasons:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_waiting = False

    async def look(
        self, pods: Mapping[Key, PodRecord], denied: Sequence[tuple[Request, waiting.Trouble]], nodes: Sequence[Free], now: float,
        away: str, ran: set[str],
    ) -> tuple[Waiting | None, list[tuple[Key, str]]]:  # fmt: skip
        """Return the line to show, if any, and the pods that will never run, each with why. `denied`: asks that are put off. `away`: why
        the API server cannot be asked. `ran`: roles of which a container ran; none of their pods is hopeless.
        """
        if away:
            self._is_waiting = True
            return Waiting("API server", "", "", f"the API server cannot be asked: {away}"), []
        rows: list[Row] = [(_DENIED, *row) for row in denied]
        hopeless: list[tuple[Key, str]] = []
        seen: dict[tuple[str, int, str], waiting.Trouble] = {}  # many pods wait for the same, and there are many nodes
        for key, record in list(pods.items()):
            if record.returned or record.request is None or pod_status.started(record.pod):
                continue
            placed = pod_status.condition(record.pod, "PodScheduled")
            unplaced = placed.get("reason") == "Unschedulable"
            cause = (record.request.role, record.request.memory, str(placed.get("message")))
            known = seen.get(cause) if unplaced else None
            trouble = known or waiting.of_pod(record.pod, now - record.since, nodes, record.request)
            if trouble is None:
                record.trouble = None
                continue
            if unplaced:
                seen[cause] = trouble
            if record.trouble is None or record.trouble[0] != trouble.resource:
                record.trouble = trouble.resource, now
            if (
                trouble.hopeless is not None
                and now - record.trouble[1] >= trouble.hopeless
                and record.request.role not in ran
            ):
                hopeless.append((key, trouble.detail))
            rows.append((_PLACED if pod_status.node_of(record.pod) else _UNPLACED, record.request, trouble))
        if not rows and (slow := self._slowest(pods, now)) is not None and slow.request is not None:
            rows.append((_PLACED, slow.request, await self._trouble_by_events(slow)))
        return self._choose(rows), hopeless

    def _choose(self, rows: Sequence[Row]) -> Waiting | None:
        if not rows:
            was_waiting, self._is_waiting = self._is_waiting, False
            return waiting.NOTHING if was_waiting else None
        self._is_waiting = True
        _, first, trouble = min(rows, key=lambda row: (row[0], -row[1].gpus, -row[1].memory, row[1].index))
        same = [request for _, request, other in rows if request.role == first.role and other.detail == trouble.detail]
        return waiting.words(same, trouble)

    def _slowest(self, pods: Mapping[Key, PodRecord], now: float) -> PodRecord | None:
        """Return the pod that is being made ready the longest, if that is slow."""
        slow_pods = [
            record for record in pods.values()
            if record.placed is not None and now - record.placed > waiting.SLOW and not (record.returned or pod_status.started(record.pod))
        ]  # fmt: skip
        return min(slow_pods, key=lambda record: record.placed or 0.0, default=None)

    async def _trouble_by_events(self, record: PodRecord) -> waiting.Trouble:
        try:
            events, _ = await self._client.list(EVENTS, fields=f"involvedObject.uid={record.uid}")
        except KubeError as error:
            log.debug("the events of %s cannot be read: %s", record.name, error)
            events = []
        return waiting.of_events(record.pod, events)
