"""The function of a Spark task: it is a container, and its child is the agent.

Spark sends this module's functions to the executors as they are, since nothing of ours is installed there; so they need the standard
library and pyspark alone. A second attempt of the task, by Spark's own retry or by speculation, does nothing: another copy of the agent may
still run, and the master asks anew where none does. Where Spark speculates, the second attempt waits to be cancelled, for Spark ends the
first attempt once the second has ended well.

A container's directory is locked while this process or its agent lives. The next container in the executor removes directories that nobody
locks, such as that of a Python worker that was killed. The agent gets SIGTERM from the kernel when this process dies (see
`engines.spark.container.entry`), and ends its program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainmaster.host.java import commands_above

AGENT = "trainmaster.agent.container:main"
PLAIN = ".file"  # ends the names that Spark has of files: of an archive it would unpack a copy, with a warning


def run(
    spec: dict[str, Any], files: Sequence[Sequence[Any]], environ: dict[str, str], speculates: bool, rows: Iterator[Any]
) -> Iterator[int | None]:
    """Be the container of one agent, and yield the agent's exit status; None where this is not the task's first attempt."""
    import json
    import os
    import shutil
    import subprocess
    import sys
    import threading

    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber():
        if speculates:
            threading.Event().wait()  # Spark kills this process
        yield None
        return
    home, lock = own_directory(f"trainmaster-{spec['job_id']}-")
    try:
        for name, shipped, is_archive in files:
            os.symlink(contents(shipped) if is_archive else fetched(shipped), os.path.join(home, name))
        devices = {name: list(resource.addresses) for name, resource in context.resources().items()}
        spec = {
            **spec, "container": str(context.taskAttemptId()), "worker": os.getpid(), "devices": devices.get("gpu", []),
            "node": host(),
        }  # fmt: skip
        # A program that runs as Spark's own tasks do needs the same Python, and modules that the application has brought.
        spark = {
            "TRAINMASTER_SPARK_PYTHON": sys.executable,
            "TRAINMASTER_SPARK_PATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        }
        process = subprocess.Popen(
            ["/bin/sh", "runtime/start", AGENT], cwd=home, stdin=subprocess.PIPE, stdout=sys.stderr.fileno(),
            env={"TRAINMASTER_PYTHON": sys.executable, **os.environ, **spark, **environ}, pass_fds=[lock],
            start_new_session=True,  # an executor's death is a SIGHUP to its workers' group, which would end the agent without a word
        )  # fmt: skip
        process.communicate(json.dumps(spec).encode())
        status = process.returncode
        yield status if status >= 0 else 128 - status
    finally:
        shutil.rmtree(home, ignore_errors=True)
        os.close(lock)


def own_directory(prefix: str) -> tuple[str, int]:
    """Make a directory and return it with the descriptor that locks it; remove what dead containers of this executor left."""
    import fcntl
    import os
    import shutil
    import tempfile

    from pyspark import SparkFiles

    place = os.path.abspath(
        SparkFiles.getRootDirectory()
    )  # the executor's own, or one that Spark has made in the driver
    turn = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)  # so that nobody removes a directory that is not locked yet
        for entry in [
            entry.path for entry in os.scandir(place) if entry.name.startswith("trainmaster-") and entry.is_dir()
        ]:
            try:
                left = os.open(entry, os.O_RDONLY)
            except FileNotFoundError:  # its own container has removed it
                continue
            try:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry, ignore_errors=True)
            except BlockingIOError:
                pass
            finally:
                os.close(left)
        home = tempfile.mkdtemp(prefix=prefix, dir=place)
        lock = os.open(home, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return home, lock
    finally:
        os.close(turn)


def host() -> str:
    """Return the name that Spark gives to this executor's host, an argument of its JVM; "" where there is none."""
    for arguments in commands_above():
        if "--hostname" in arguments:
            return arguments[arguments.index("--hostname") + 1]
    return ""


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
    folder, name = os.path.split(archive)
    place = os.path.join(folder, f".contents-{name}")
    if not os.path.exists(place):
        draft = tempfile.mkdtemp(prefix=".draft-", dir=folder)
        ours = archive.removesuffix(PLAIN)
        formats = (form for form, endings, _ in shutil.get_unpack_formats() if ours.endswith(tuple(endings)))
        shutil.unpack_archive(archive, draft, next(formats))
        try:
            os.rename(draft, place)
        except OSError:  # another task was faster
            shutil.rmtree(draft, ignore_errors=True)
    return place
