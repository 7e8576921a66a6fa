"""The context that a function gets in a task, with TensorFlowOnSpark's names. It runs in programs: standard library alone."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.spark import TFNode
from trainmaster.spark.nodes.readers import Readers

PORT = "TRAINMASTER_PORT_TENSORFLOW"


class TFNodeContext:
    """The node of a cluster that a function runs on.

    `executor_id` numbers all nodes: ps, then master or chief, evaluator, workers. `worker_num` is the same number. `num_workers` counts
    master, chief and workers. `cluster_spec`: role -> host:port by index; with the evaluator in its own one alone.
    `working_dir`: the driver's.
    `tmp_socket` holds the node's port until `release_port`; None where it was released before the function was called.
    """

    def __init__(
        self,
        executor_id: int = 0,
        job_name: str = "",
        task_index: int = 0,
        cluster_spec: Mapping[str, Sequence[str]] | None = None,
        defaultFS: str = "file://",
        working_dir: str = ".",
        mgr: Any = None,
        tmp_socket: socket.socket | None = None,
    ) -> None:
        self.executor_id = self.worker_num = executor_id
        self.job_name, self.task_index = job_name, task_index
        self.cluster_spec = {role: list(nodes) for role, nodes in (cluster_spec or {}).items()}
        self.num_workers = sum(len(self.cluster_spec.get(role, ())) for role in ("master", "chief", "worker"))
        self.defaultFS, self.working_dir = defaultFS, working_dir
        self.mgr, self.tmp_socket = mgr, tmp_socket

    def absolute_path(self, path: str) -> str:
        """Return a path as a URL, as `TFNode.hdfs_path` does."""
        return TFNode.hdfs_path(self, path)

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> Any:
        """Return the ClusterSpec and a running server of TensorFlow, as `TFNode.start_cluster_server` does."""
        return TFNode.start_cluster_server(self, num_gpus, rdma)

    def export_saved_model(self, sess: Any, export_dir: str, tag_set: str, signatures: Any) -> None:
        """Refuse, as `TFNode.export_saved_model` does."""
        TFNode.export_saved_model(sess, export_dir, tag_set, signatures)

    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> TFNode.DataFeed:
        """Return the feed of this node."""
        return TFNode.DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)

    def release_port(self) -> None:
        """Free the node's port for TensorFlow, where `release_port=False` kept it."""
        TFNode.release_port(self)


def context_of_task(facts: Mapping[str, Any]) -> TFNodeContext:
    """Return the context of this program's task. `facts`: `first` (executor id of each role's first task), `workers`, `defaultFS`, and
    `servers`, the addresses of parameter servers that are not tasks of the job: TF_CONFIG gets them too.
    """
    role, index = os.environ["TRAINMASTER_ROLE"], int(os.environ["TRAINMASTER_INDEX"])
    cluster = json.loads(os.environ.get("TF_CLUSTER_DEF", "{}"))
    if facts.get("servers"):
        cluster["ps"] = facts["servers"]
        config = json.loads(os.environ["TF_CONFIG"])
        os.environ["TF_CONFIG"] = json.dumps({**config, "cluster": {**config["cluster"], "ps": facts["servers"]}})
    context = TFNodeContext(
        facts["first"][role] + index,
        role,
        index,
        cluster,
        facts["defaultFS"],
        facts["working_dir"],
        Readers(),
        _held_port(),
    )
    context.num_workers = facts["workers"]
    return context


def _held_port() -> socket.socket | None:
    """Bind the port of this task, so that nobody else takes it."""
    if PORT not in os.environ:
        return None
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", int(os.environ[PORT])))
    return holder
