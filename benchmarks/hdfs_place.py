"""The HDFS that figures are measured on: that of HADOOP_CONF_DIR and HADOOP_CLASSPATH, else one started for it and removed again."""

from __future__ import annotations

import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainmaster.clusters import hadoop
from trainmaster.clusters.hadoop import Settings

NEEDS = ("HADOOP_CONF_DIR", "HADOOP_CLASSPATH")


@contextmanager
def place() -> Iterator[str]:
    """The URL of a folder of one's own, removed afterwards."""
    if all(os.environ.get(name) for name in NEEDS):
        yield from _folder()
        return
    with tempfile.TemporaryDirectory(prefix="tm-bench-hadoop-") as folder:
        at = Path(folder, "hadoop")
        try:
            cluster = hadoop.up(Settings(nodes=1), folder=at)
            os.environ.update({name: cluster.environ[name] for name in NEEDS})
            yield from _folder()
        finally:
            hadoop.down(folder=at)
            for name in NEEDS:
                os.environ.pop(name, None)


def shell(*arguments: str) -> None:
    """Hadoop's own client, as its `hdfs dfs` starts it."""
    command = ["java", "-Xmx1g", "-cp", os.environ["HADOOP_CLASSPATH"], "org.apache.hadoop.fs.FsShell", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)


def _folder() -> Iterator[str]:
    from trainmaster.data.store.stores import store_for

    name = f"bench-{uuid.uuid4().hex[:8]}"
    yield f"hdfs:///tmp/{name}"
    store_for("hdfs:///tmp").remove(name)
