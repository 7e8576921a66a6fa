"""Make the pods that a job begins with together with its master's, so that a start takes as long as one pod does, and not two.

They are the pods that the master will ask for first: it finds and adopts them. Nothing depends on them: the master makes those that are not
made here. They wait until the master's own pod has its place, which they would take from it on a full cluster. Pods that a role can begin
without are left to the master, so that they do not take the place of pods that another role needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from trainmaster.core.containers import Request, is_growth
from trainmaster.core.machine.formation import bracketed
from trainmaster.core.spec.job import Job
from trainmaster.engines.kubernetes import ENGINE
from trainmaster.engines.kubernetes.master import pod_status
from trainmaster.engines.kubernetes.master.runtime import PORT, agents
from trainmaster.engines.kubernetes.names import MASTER_PART, selector
from trainmaster.engines.spec import spec_of
from trainmaster.kube.client import Client
from trainmaster.kube.errors import KubeError
from trainmaster.kube.kinds import PODS
from trainmaster.kube.watching import follow

MOST = 16  # pods; whoever asks for more waits longer for the last of them than for a master
PLACED_WITHIN = 3.0  # s that the master's pod has to be placed, beyond which it makes all pods itself
MADE_WITHIN = 5.0  # s for the calls that make them
UNMET = 600.0  # s that their agents wait for the first master: its image may be fetched for long


async def make(
    client: Client, job_id: str, requests: Sequence[Request], pod: Callable[[Request], Mapping[str, Any]]
) -> None:
    """Make the initial pods, as far as that can be done at once."""
    needed = [request for request in requests if not is_growth(request)]
    chosen = sorted(needed, key=lambda request: (-request.priority, request.index))[:MOST]
    try:
        if chosen and await _wait_for_place(client, job_id):
            async with asyncio.timeout(MADE_WITHIN):
                await asyncio.gather(*(client.create(PODS, pod(request)) for request in chosen), return_exceptions=True)
    except (KubeError, TimeoutError):
        return


def spec(payload: Mapping[str, Any], job: Job, address: str) -> Callable[[Request, Sequence[str]], dict[str, Any]]:
    """Return a function that makes an agent's spec as the master, which has this `payload` and will be at `address`, makes it."""
    place = f"{payload['job']['storage'].rstrip('/')}/{payload['job_id']}"
    fields = {
        "addresses": [f"{bracketed(address)}:{PORT}"], "certificate": payload["certificate"],
        "unmet": UNMET, **agents(payload, job),
    }  # fmt: skip

    def spec_of_agent(request: Request, devices: Sequence[str]) -> dict[str, Any]:
        return {
            **spec_of(payload["job_id"], job, payload["site"], place, request, devices, ENGINE.capabilities),
            **fields,
        }

    return spec_of_agent


async def _wait_for_place(client: Client, job_id: str) -> bool:
    """Wait for a place of the master's pod; tell whether it has one."""
    async with asyncio.timeout(PLACED_WITHIN), aclosing(follow(client, PODS, selector(job_id, MASTER_PART))) as changes:
        async for change in changes:
            if change.kind not in ("synced", "away", "deleted") and pod_status.node_of(change.object):
                return True
    return False
