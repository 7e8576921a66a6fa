"""The pods that a job begins with, made together with its master's: so a start takes as long as one pod does, and not two.

They are those that the master will ask for first, which finds them there and adopts them. Nothing depends on them: what is not made here,
the master makes. They wait until the master's own pod has its place, which they would take from it on a full cluster. Elastic gangs, which
begin with what is granted at once, have none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from trainmaster.core.machine.formation import bracketed
from trainmaster.core.spec.job import Job
from trainmaster.engines.contract import Request
from trainmaster.engines.gangs import is_growth
from trainmaster.engines.kubernetes import ENGINE
from trainmaster.engines.kubernetes.master import pod_status as ends
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
    client: Client, job_id: str, asked: Sequence[Request], pod: Callable[[Request], Mapping[str, Any]]
) -> None:
    """Make them, as far as that can be done at once."""
    if any(map(is_growth, asked)):
        return
    chosen = sorted(asked, key=lambda one: (-one.priority, one.index))[:MOST]
    try:
        if chosen and await _placed(client, job_id):
            async with asyncio.timeout(MADE_WITHIN):
                await asyncio.gather(*(client.create(PODS, pod(one)) for one in chosen), return_exceptions=True)
    except (KubeError, TimeoutError):
        return


def spec(told: Mapping[str, Any], job: Job, address: str) -> Callable[[Request, Sequence[str]], dict[str, Any]]:
    """What their agents are given: what the master, which is `told` this and will be at `address`, gives others."""
    place = f"{told['job']['storage'].rstrip('/')}/{told['job_id']}"
    of_master = {
        "addresses": [f"{bracketed(address)}:{PORT}"], "certificate": told["certificate"],
        "unmet": UNMET, **agents(told, job),
    }  # fmt: skip

    def spec_of_agent(request: Request, devices: Sequence[str]) -> dict[str, Any]:
        return {**spec_of(told["job_id"], job, told["site"], place, request, devices, ENGINE.capabilities), **of_master}

    return spec_of_agent


async def _placed(client: Client, job_id: str) -> bool:
    """Wait for a place of the master's pod; whether it has one."""
    async with asyncio.timeout(PLACED_WITHIN), aclosing(follow(client, PODS, selector(job_id, MASTER_PART))) as seen:
        async for one in seen:
            if one.kind not in ("synced", "away", "deleted") and ends.node_of(one.object):
                return True
    return False
