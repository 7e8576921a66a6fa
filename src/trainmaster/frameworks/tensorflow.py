"""TensorFlow: TF_CONFIG for tf.distribute (MultiWorkerMirroredStrategy, ParameterServerStrategy, estimators) and the
older TF_ variables.

The cluster has the roles `chief` (or `master`), `worker` and `ps`. An evaluator is told of the cluster and is not in
it, as TensorFlow's guide to distributed training demands. Tasks of other roles have TF_ROLE and TF_INDEX alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from trainmaster.core.machine.formation import Formation
from trainmaster.core.spec.job import Job, Role
from trainmaster.frameworks.contract import Placement
from trainmaster.frameworks.variables import Variable

CLUSTER = ("chief", "master", "worker", "ps")
VARIABLES = (
    Variable("TF_CONFIG", "JSON: the cluster, role -> addresses by index, and which task of it this is",
             '{"cluster": {"worker": ["10.0.0.5:23017", "10.0.0.6:23002"]}, "task": {"type": "worker", "index": 1}}'),
    Variable("TF_CLUSTER_DEF", "JSON: the cluster alone", '{"worker": ["10.0.0.5:23017", "10.0.0.6:23002"]}'),
    Variable("TF_ROLE", "the task's role", "worker"),
    Variable("TF_INDEX", "the task's index in its role, from 0", "1"),
)  # fmt: skip


def ports(role: Role, job: Job) -> Sequence[str]:
    return ("tensorflow",) if role.name in CLUSTER else ()


def environment(formation: Formation, task: str) -> Placement:
    me = formation.by_task[task]
    env = {"TF_ROLE": me.role, "TF_INDEX": str(me.place)}
    if me.role in (*CLUSTER, "evaluator"):
        env["TF_CLUSTER_DEF"] = cluster = _cluster(formation)
        task = json.dumps({"type": me.role, "index": me.place})
        # Programs that name their chief "master" are written for this form.
        cloud = ', "environment": "cloud"' if "master" in formation.roles else ""
        env["TF_CONFIG"] = f'{{"cluster": {cluster}, "task": {task}{cloud}}}'
    return Placement(env)


@lru_cache(maxsize=1)  # the same for every task of a formation
def _cluster(formation: Formation) -> str:
    peers = {role: formation.roles[role] for role in CLUSTER if role in formation.roles}
    return json.dumps({role: [peer.at("tensorflow") for peer in peers[role]] for role in peers})
