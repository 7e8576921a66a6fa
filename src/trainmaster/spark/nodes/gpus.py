"""Choose the GPUs of a process, as TensorFlowOnSpark does, before its function calls TensorFlow.

Where Spark gives GPUs to the task, these are the answer. Elsewhere a process takes free GPUs of its host (`gpu_info`), one by default.
On Kubernetes it takes none then: pods of a node with GPUs may see GPUs that are not theirs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.spark import gpu_info

VISIBLE = "CUDA_VISIBLE_DEVICES"


def choose_gpus(arguments: Any, of_spark: Sequence[str], index: int) -> list[str]:
    """Return the GPUs for a function with these arguments, whose `num_gpus` says how many, if they have it.

    `of_spark`: the addresses that Spark gives to the task. `index`: of the process on its host. Raises RuntimeError for too few GPUs.
    """
    requested = arguments.get("num_gpus") if isinstance(arguments, Mapping) else getattr(arguments, "num_gpus", None)
    gpus = list(of_spark)[:requested]
    count = 1 if requested is None else requested
    if not gpus and count and "SPARK_EXECUTOR_POD_IP" not in os.environ and gpu_info.is_gpu_available():
        gpus = list(gpu_info.get_gpus(count, index, format=gpu_info.AS_LIST))
    if len(gpus) < (requested or 0):
        raise RuntimeError(
            f"num_gpus is {requested}, and this process can have {len(gpus)} GPUs: {', '.join(gpus) or 'none'}"
        )
    return gpus


def index_on_host(cluster: Mapping[str, Sequence[str]], role: str, index: int) -> int:
    """Return the index of a node among the nodes of its host; -1 for a node that is not there."""
    if index >= len(cluster.get(role, ())):
        return -1
    own = cluster[role][index]
    addresses = [address for nodes in cluster.values() for address in nodes]
    return _peers(addresses, own).index(own)


def single_node_env(num_gpus: int = 1, worker_index: int = -1, nodes: Sequence[str] = ()) -> None:
    """Prepare this process for TensorFlow without a cluster: its GPUs, and Hadoop's classes where HADOOP_PREFIX is set.

    `nodes`: the addresses of all instances, so that those of one host take different GPUs.
    """
    if "HADOOP_PREFIX" in os.environ and "TFOS_CLASSPATH_UPDATED" not in os.environ:
        command = [os.path.join(os.environ["HADOOP_PREFIX"], "bin", "hadoop"), "classpath", "--glob"]
        classes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        os.environ["CLASSPATH"] = os.pathsep.join([os.environ.get("CLASSPATH", ""), classes.strip()])
        os.environ["TFOS_CLASSPATH_UPDATED"] = "1"
    if worker_index >= 0 and nodes:
        worker_index = _peers(nodes, nodes[worker_index]).index(nodes[worker_index])
    has_gpus = num_gpus > 0 and gpu_info.is_gpu_available()
    os.environ[VISIBLE] = str(gpu_info.get_gpus(num_gpus, worker_index)) if has_gpus else ""


def _peers(addresses: Sequence[str], own: str) -> list[str]:
    """Return the addresses of one host, in order."""
    host = own.partition(":")[0]
    return [address for address in addresses if address.partition(":")[0] == host]
