"""PyTorch's torch.distributed: the variables that torchrun sets (torch/distributed/elastic/agent/server).

Rank 0 makes the store itself: TORCHELASTIC_USE_AGENT_STORE is not set, for it says that a launcher serves one at
MASTER_PORT. Each generation has a new MASTER_PORT, so that nobody reads the addresses of the last one. Tasks that do
not count have no rank and are not told of the store.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.core.formation import Formation, bracketed
from trainmaster.core.job import Job, Role
from trainmaster.frameworks.contract import Placement, texts


def ports(role: Role, job: Job) -> Sequence[str]:
    return ("rendezvous",) if role.counts else ()  # of each, since any may become rank 0


def environment(formation: Formation, task: str) -> Placement:
    me = formation.by_task[task]
    if (rank := me.rank) is None:
        return Placement()
    first = formation.first
    port = first.ports["rendezvous"]
    env = {
        "WORLD_SIZE": rank.world_size, "LOCAL_WORLD_SIZE": rank.local_world_size,
        "GROUP_RANK": rank.group_rank, "GROUP_WORLD_SIZE": rank.group_world_size,
        "ROLE_NAME": me.role, "ROLE_WORLD_SIZE": rank.role_world_size,
        "MASTER_ADDR": first.address, "MASTER_PORT": port, "INIT_METHOD": f"tcp://{bracketed(first.address)}:{port}",
        "TORCHELASTIC_RUN_ID": formation.job, "TORCHELASTIC_RESTART_COUNT": formation.restarts,
        "TORCHELASTIC_MAX_RESTARTS": me.limit,
    }  # fmt: skip
    copies = [{"RANK": rank.rank + i, "ROLE_RANK": rank.role_rank + i, "LOCAL_RANK": i} for i in range(me.copies)]
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"} | ({"OMP_NUM_THREADS": "1"} if me.copies > 1 else {})
    if me.interface and len({peer.address for peer in formation.ranked}) > 1:
        # gloo's own choice is the address that the host name means, which Debian makes 127.0.1.1
        defaults["GLOO_SOCKET_IFNAME"] = me.interface
    return Placement(texts(env), [texts(copy) for copy in copies], defaults=defaults)
