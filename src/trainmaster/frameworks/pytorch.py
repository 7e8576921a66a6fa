"""PyTorch's torch.distributed: the variables that torchrun sets (torch/distributed/elastic/agent/server).

Rank 0 makes the store itself: TORCHELASTIC_USE_AGENT_STORE is not set, for it says that a launcher serves one at
MASTER_PORT. Each generation has a new MASTER_PORT, so that nobody reads the addresses of the last one. Tasks that do
not count have no rank, and do not learn of the store. The last variables yield to what the job or its submitter sets.
On one machine, other hosts reach no port of its collectives; PyTorch always has the store's port on all addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainmaster.core.machine.formation import Formation, Peer
from trainmaster.core.machine.ranks import Rank
from trainmaster.core.spec.job import Job, Role
from trainmaster.frameworks.contract import Placement, texts
from trainmaster.frameworks.variables import Variable

_OF_TASK: dict[Variable, Callable[[Formation, Peer, Rank], object]] = {
    Variable("WORLD_SIZE", "how many programs there are", "4"): lambda of, me, rank: rank.world_size,
    Variable("LOCAL_WORLD_SIZE", "how many copies its container runs", "2"): lambda of, me, rank: rank.local_world_size,
    Variable("GROUP_RANK", "which container this is, from 0", "1"): lambda of, me, rank: rank.group_rank,
    Variable("GROUP_WORLD_SIZE", "how many containers there are", "2"): lambda of, me, rank: rank.group_world_size,
    Variable("ROLE_NAME", "the task's role", "worker"): lambda of, me, rank: me.role,
    Variable("ROLE_WORLD_SIZE", "how many programs its role has", "4"): lambda of, me, rank: rank.role_world_size,
    Variable("MASTER_ADDR", "where rank 0 is", "10.0.0.5"): lambda of, me, rank: of.first.address,
    Variable("MASTER_PORT", "where it serves the store", "23017"): lambda of, me, rank: of.first.ports["rendezvous"],
    Variable("INIT_METHOD", "a URL", "tcp://10.0.0.5:23017"): lambda of, me, rank: "tcp://" + of.first.at("rendezvous"),
    Variable("TORCHELASTIC_RUN_ID", "the job's id", "digits-k3x7qa"): lambda of, me, rank: of.job,
    Variable("TORCHELASTIC_RESTART_COUNT", "restarts of the job so far", "1"): lambda of, me, rank: of.restarts,
    Variable("TORCHELASTIC_MAX_RESTARTS", "the role's `restart.limit`", "3"): lambda of, me, rank: me.limit,
}
_OF_COPY: dict[Variable, Callable[[Rank, int], object]] = {
    Variable("RANK", "which program of all this is, from 0", "3"): lambda rank, copy: rank.rank + copy,
    Variable("ROLE_RANK", "which program of its role this is, from 0", "3"): lambda rank, copy: rank.role_rank + copy,
    Variable("LOCAL_RANK", "which copy in its container this is, from 0", "1"): lambda rank, copy: copy,
}
_UNLESS_SET = (
    Variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "so that a failed collective of NCCL ends the program", "1"),
)
VARIABLES = (*_OF_COPY, *_OF_TASK, *_UNLESS_SET)


def ports(role: Role, job: Job) -> Sequence[str]:
    return ("rendezvous",) if role.counts else ()  # of each, since any may become rank 0


def environment(formation: Formation, task: str) -> Placement:
    me = formation.by_task[task]
    if (rank := me.rank) is None:
        return Placement()
    env = {variable.name: value(formation, me, rank) for variable, value in _OF_TASK.items()}
    copies = [{variable.name: value(rank, copy) for variable, value in _OF_COPY.items()} for copy in range(me.copies)]
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    is_here = all(peer.address.startswith("127.") for peer in formation.peers)
    if is_here and rank.world_size > 1:  # a single one may have others elsewhere, of its own
        defaults |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), "lo")
    store = "" if me is formation.first else formation.first.at("rendezvous")
    return Placement(texts(env), [texts(copy) for copy in copies], defaults=defaults, store=store)
