"""TensorFlow: TF_CONFIG for tf.distribute (MultiWorkerMirroredStrategy, ParameterServerStrategy, estimators), and older TF_ variables.

The cluster has the roles `chief` (or `master`), `worker` and `ps`. An evaluator knows it and its own address, at which a
strategy serves; the others do not know the evaluator, as TensorFlow demands. Tasks of other roles have TF_ROLE and TF_INDEX alone.
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
EVALUATOR = "evaluator"
VARIABLES = (
    Variable("TF_CONFIG", "JSON: the cluster, role -> addresses by index, and which task of it this is",
             '{"cluster": {"worker": ["10.0.0.5:23017", "10.0.0.6:23002"]}, "task": {"type": "worker", "index": 1}}'),
    Variable("TF_CLUSTER_DEF", "JSON: the cluster alone", '{"worker": ["10.0.0.5:23017", "10.0.0.6:23002"]}'),
    Variable("TF_ROLE", "the task's role", "worker"),
    Variable("TF_INDEX", "the task's index in its role, from 0", "1"),
)  # fmt: skip


def ports(role: Role, job: Job) -> Sequence[str]:
    return ("tensorflow",) if role.name in (*CLUSTER, EVALUATOR) else ()


def environment(formation: Formation, task: str) -> Placement:
    me = formation.by_task[task]
    env = {"TF_ROLE": me.role, "TF_INDEX": str(me.place)}
    if me.role in (*CLUSTER, EVALUATOR):
        env["TF_CLUSTER_DEF"] = cluster = _cluster(formation, me.role == EVALUATOR)
        task = json.dumps({"type": me.role, "index": me.place})
        cloud = ', "environment": "cloud"' if "master" in formation.roles else ""  # as such programs expect
        env["TF_CONFIG"] = f'{{"cluster": {cluster}, "task": {task}{cloud}}}'
    return Placement(env)


@lru_cache(maxsize=2)  # the same for every task of a formation
def _cluster(formation: Formation, with_evaluator: bool = False) -> str:
    is_alone = with_evaluator and len(formation.roles[EVALUATOR]) == 1  # TensorFlow refuses several
    roles = [role for role in (*CLUSTER, *[EVALUATOR] * is_alone) if role in formation.roles]
    return json.dumps({role: [peer.at("tensorflow") for peer in formation.roles[role]] for role in roles})
