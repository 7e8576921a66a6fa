"""TensorFlowOnSpark's TFSparkNode: the context of a node, and a node that a program starts by hand.

`run` joins a cluster through a reservation server and calls the function in this process. `TFCluster.run` does not use it: the nodes of a
cluster are tasks of a job, and their rows come through shared memory.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainmaster.spark import gpu_info, reservation
from trainmaster.spark.nodes import TFManager, entry
from trainmaster.spark.nodes.context import TFNodeContext as TFNodeContext
from trainmaster.spark.nodes.gpus import VISIBLE, choose_gpus, index_on_host


def run(
    fn: Any, tf_args: Any, cluster_meta: Mapping[str, Any], tensorboard: bool, log_dir: str | None, queues: Sequence[str], background: bool
) -> Callable[[Iterable[int]], None]:  # fmt: skip
    """Return a function that takes executor ids and is the last one's node.

    `cluster_meta`: `cluster_template` (role -> executor ids), `server_addr`, `default_fs`, `working_dir` and `release_port`. The manager of
    `ctx.mgr` has the `queues`. Raises ValueError for `tensorboard` and `background`: only a cluster has these.
    """
    if tensorboard or background:
        raise ValueError("TFSparkNode.run has neither tensorboard nor background: start the nodes by TFCluster.run")

    def node(ids: Iterable[int]) -> None:
        [*_, executor_id] = ids
        roles = [
            (role, members.index(executor_id))
            for role, members in cluster_meta["cluster_template"].items()
            if executor_id in members
        ]
        role, index = roles[0] if roles else ("default", -1)
        client = reservation.Client(cluster_meta["server_addr"])
        with socket.socket() as holder:
            holder.bind(("", 0))  # so that nobody else takes the port
            port, host = holder.getsockname()[1], reservation.ip_address()
            client.register(
                {"executor_id": executor_id, "host": host, "job_name": role, "task_index": index, "port": port}
            )
            nodes = sorted(client.await_reservations(), key=lambda node: node["executor_id"])
            cluster = _get_cluster_spec(nodes)
            if cluster.keys() & {"master", "chief"}:
                task = {"type": role, "index": index}
                os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})
            gpus = choose_gpus(tf_args, gpu_info.spark_addresses(), index_on_host(cluster, role, index))
            os.environ[VISIBLE] = ",".join(gpus)
            manager = TFManager.start(os.urandom(16), queues)
            context = TFNodeContext(
                executor_id,
                role,
                index,
                cluster,
                cluster_meta["default_fs"],
                cluster_meta["working_dir"],
                manager,
                holder,
            )
            try:
                entry.call(fn, tf_args, context, {"release_port": cluster_meta.get("release_port", True)})
            finally:
                manager.shutdown()

    return node


def _get_cluster_spec(sorted_cluster_info: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return role -> addresses, of nodes in the order of their executor ids."""
    cluster: dict[str, list[str]] = {}
    for node in sorted_cluster_info:
        cluster.setdefault(node["job_name"], []).append(f"{node['host']}:{node['port']}")
    return cluster


def _has_spark_resource_api() -> bool:
    """Say that Spark can give GPUs to tasks: each Spark since 3.0 can."""
    return True
