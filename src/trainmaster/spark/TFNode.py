"""TensorFlowOnSpark's TFNode: helpers for the program that runs in a Spark task."""

from __future__ import annotations

import getpass
import logging
from typing import Any, Protocol

HADOOP_SCHEMES = tuple(
    f"{name}://" for name in ("adl", "file", "hdfs", "oss", "s3", "s3a", "s3n", "swift", "viewfs", "wasb")
)


class Place(Protocol):
    """The part of a node's context that paths depend on."""

    defaultFS: str
    working_dir: str


def hdfs_path(ctx: Place, path: str) -> str:
    """Return a path as a URL. A relative one is in the user's directory of HDFS, or in the working directory where the default is `file:`.

    | path, default file system | URL |
    |---|---|
    | with one of HADOOP_SCHEMES | as it is |
    | `/abs` | `{defaultFS}/abs` |
    | relative, hdfs or viewfs | `{defaultFS}/user/{user}/{path}` |
    | relative, file | `{defaultFS}/{working_dir without its first /}/{path}` |
    | relative, another | `{defaultFS}/{path}`, with a warning |
    """
    if path.startswith(HADOOP_SCHEMES):
        return path
    if path.startswith("/"):
        return ctx.defaultFS + path
    if ctx.defaultFS.startswith(("hdfs://", "viewfs://")):
        return f"{ctx.defaultFS}/user/{getpass.getuser()}/{path}"  # USER: YARN's containers run as another one
    if ctx.defaultFS.startswith("file://"):
        return f"{ctx.defaultFS}/{ctx.working_dir[1:]}/{path}"
    logging.getLogger(__name__).warning("Unknown scheme %s with relative path: %s", ctx.defaultFS, path)
    return f"{ctx.defaultFS}/{path}"


def start_cluster_server(ctx: Any, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
    """Return the ClusterSpec and a started `tf.distribute.Server` of this node. `num_gpus` changes nothing: Spark gives a task its GPUs.

    Raises ValueError for `rdma`: TensorFlow has had no "grpc+verbs" since 2.0.
    """
    if rdma:
        raise ValueError('rdma=True needs the protocol "grpc+verbs", which TensorFlow has not had since 2.0')
    import tensorflow as tf

    cluster = tf.train.ClusterSpec(ctx.cluster_spec)
    release_port(ctx)
    return cluster, tf.distribute.Server(cluster, job_name=ctx.job_name, task_index=ctx.task_index)


def export_saved_model(sess: Any, export_dir: str, tag_set: str, signatures: Any) -> None:
    """Refuse: sessions are TensorFlow 1's. `compat.export_saved_model` exports a Keras model."""
    raise NotImplementedError(
        "there are no sessions in TensorFlow 2: use compat.export_saved_model(model, export_dir, is_chief)"
    )


def release_port(ctx: Any) -> None:
    """Free the node's port for TensorFlow, where it is still held."""
    if ctx.tmp_socket is not None:
        ctx.tmp_socket.close()
        ctx.tmp_socket = None
