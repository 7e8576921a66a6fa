"""Programs written for XLearning, as `tm submit --xlearning` runs them: they learn of each other as in XLearning.
A chief is worker 0 with memory of its own. The job's annotation `xlearning.cluster` says who forms a cluster: `tensorflow` (all
workers and ps; the evaluator only knows it), `pytorch` (with its variables too); without it all work alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs

from trainmaster.core.machine.formation import Formation
from trainmaster.core.spec.job import Job, Role
from trainmaster.frameworks import pytorch, tensorflow
from trainmaster.frameworks.contract import Placement
from trainmaster.frameworks.variables import Variable

CLUSTER = "xlearning.cluster"
VARIABLES = (
    Variable("INDEX, TF_INDEX", "the task's index in its role, from 0; a chief is worker 0", "1"),
    Variable("TF_ROLE", "the task's role: worker, ps or evaluator", "worker"),
    Variable("TF_CLUSTER_DEF", "JSON: role -> addresses by index, in a cluster of TensorFlow",
             '{"worker": ["10.0.0.5:23017", "10.0.0.6:23002"], "ps": ["10.0.0.5:23005"]}'),
    Variable("TF_CONFIG", "the same, and which task of it this is", '{"cluster": {...}, "task": {"type": "worker", "index": 1}}'),
)  # fmt: skip


def ports(role: Role, job: Job) -> Sequence[str]:
    framework = {"tensorflow": tensorflow, "pytorch": pytorch}.get(job.annotations.get(CLUSTER, ""))
    return framework.ports(role, job) if framework is not None else ()


def environment(formation: Formation, task: str) -> Placement:
    me = formation.by_task[task]
    workers = [peer for role in ("chief", "worker") for peer in formation.roles.get(role, ())]
    role = "worker" if me.role == "chief" else me.role
    index = me.place + (me.role == "worker" and "chief" in formation.roles)
    env = {"INDEX": str(index), "TF_INDEX": str(index), "TF_ROLE": role}
    if "rendezvous" in me.ports:
        placement = pytorch.environment(formation, task)
        return attrs.evolve(placement, env=placement.env | env)
    if any("tensorflow" in peer.ports for peer in workers):
        members = {"worker": workers, "ps": formation.roles.get("ps", ()), "evaluator": [me] * (role == "evaluator")}
        cluster = {name: [peer.at("tensorflow") for peer in peers] for name, peers in members.items() if peers}
        env["TF_CLUSTER_DEF"] = json.dumps(cluster)
        env["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
    return Placement(env)
