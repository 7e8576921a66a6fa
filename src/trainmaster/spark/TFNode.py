"""TensorFlowOnSpark's TFNode: helpers for the program that runs in a Spark task."""

from __future__ import annotations

import getpass
import logging
from typing import Protocol

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
