"""The function of a Spark task: it is a container, and its child is the agent.

Spark sends this module's functions to the executors as they are, since nothing of ours is installed there; so they need the standard
library and pyspark alone. A second attempt of the task, by Spark's own retry or by speculation, does nothing: another copy of the agent may
still run, and the master asks anew where none does.

The agent gets SIGTERM from the kernel when this process dies (see `engines.spark.container.entry`), and ends its program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

AGENT = "trainmaster.agent.container:main"


def run(
    spec: dict[str, Any], files: Sequence[Sequence[Any]], environ: dict[str, str], rows: Iterator[Any]
) -> Iterator[int | None]:
    """Be the container of one agent, and yield the agent's exit status; None where this is not the task's first attempt."""
    import json
    import os
    import shutil
    import subprocess
    import sys
    import tempfile

    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber():
        yield None
        return
    home = tempfile.mkdtemp(prefix=f"trainmaster-{spec['job_id']}-", dir=os.getcwd())
    try:
        for name, shipped, is_archive in files:
            os.symlink(contents(shipped) if is_archive else fetched(shipped), os.path.join(home, name))
        devices = {name: list(resource.addresses) for name, resource in context.resources().items()}
        spec = {
            **spec, "container": str(context.taskAttemptId()), "worker": os.getpid(), "devices": devices.get("gpu", []),
        }  # fmt: skip
        # What a program needs that runs as Spark's own tasks do: the same Python, and modules that the application has brought.
        spark = {
            "TRAINMASTER_SPARK_PYTHON": sys.executable,
            "TRAINMASTER_SPARK_PATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        }
        process = subprocess.Popen(
            ["/bin/sh", "runtime/start", AGENT], cwd=home, stdin=subprocess.PIPE, stdout=sys.stderr.fileno(),
            env={"TRAINMASTER_PYTHON": sys.executable, **os.environ, **spark, **environ},
        )  # fmt: skip
        process.communicate(json.dumps(spec).encode())
        status = process.returncode
        yield status if status >= 0 else 128 - status
    finally:
        shutil.rmtree(home, ignore_errors=True)


def fetched(shipped: str) -> str:
    """Return the place of a file that the executor has from the driver."""
    import os

    from pyspark import SparkFiles

    return str(os.path.abspath(SparkFiles.get(shipped)))


def contents(shipped: str) -> str:
    """Return the folder with an archive's contents; unpack it where no task of this executor has."""
    import os
    import shutil
    import tempfile

    archive = fetched(shipped)
    place = f"{archive}.contents"
    if not os.path.exists(place):
        draft = tempfile.mkdtemp(prefix=".draft-", dir=os.path.dirname(archive))
        shutil.unpack_archive(archive, draft)
        try:
            os.rename(draft, place)
        except OSError:  # another task was faster
            shutil.rmtree(draft, ignore_errors=True)
    return place
