"""Staging from HDFS: a task's input on its disk, beside Hadoop's own `FsShell -get`, each with its start.

Ours is a fresh Python that lists the input and downloads it as an agent does, with sizes and stamps checked; the peer a JVM. Both bring the
same files from the same HDFS to the same disk, in turn: one large file, and a folder of many. Run:

    python benchmarks/hdfs_staging.py [--runs N] [--json]

It asks the HDFS of HADOOP_CONF_DIR, else starts a Hadoop on this machine. The figure to reach: >= 1.5 x as fast.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import figures
import hdfs_place

LARGE = 512 << 20  # bytes
MANY, SMALL = 200, 256 << 10
OURS = """
import sys
from trainmaster.data.sources import list_input
from trainmaster.data.staging import download
download(list_input(sys.argv[1]), sys.argv[2])
"""


def measure(runs: int) -> list[figures.Row]:
    with hdfs_place.place() as url, tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        put(url, folder)
        return [
            beside(f"{LARGE >> 20} MiB in one file", f"{url}/one", folder, runs),
            beside(f"{MANY * SMALL >> 20} MiB in {MANY} files", f"{url}/many", folder, runs),
        ]


def put(url: str, folder: str) -> None:
    from trainmaster.data.outputs import upload_leaves
    from trainmaster.data.store.stores import store_for
    from trainmaster.data.store.transfer import Flow
    from trainmaster.data.store.trees import scan

    block = os.urandom(1 << 20)
    for name, count, size in (("one", 1, LARGE), ("many", MANY, SMALL)):
        source = Path(folder, name)
        source.mkdir()
        for n in range(count):
            with (source / f"part-{n:05}").open("wb") as file:
                for at in range(0, size, len(block)):
                    file.write(block[: min(len(block), size - at)])
        tree = scan(str(source))
        assert tree is not None
        upload_leaves(store_for(url), name, tree, tree.leaves.values(), Flow())
        shutil.rmtree(source)


def beside(what: str, url: str, folder: str, runs: int) -> figures.Row:
    target = f"{folder}/target"
    ours = [sys.executable, "-I", "-c", OURS, url, target]
    taken: tuple[list[float], list[float]] = ([], [])
    for run in range(-1, runs):  # the first of each warms the disk's cache
        for side, act in enumerate((lambda: started(ours), lambda: hdfs_place.shell("-get", url, target))):
            seconds = timed(act)
            assert sum(path.stat().st_size for path in Path(target).iterdir()) in (LARGE, MANY * SMALL)
            shutil.rmtree(target)
            if run >= 0:
                taken[side].append(seconds)
    return figures.Row(f"an input of {what} is on the disk", taken[0], "s", None, "FsShell -get", taken[1], 1.5)


def started(command: list[str]) -> None:
    subprocess.run(command, check=True)


def timed(act: Callable[[], None]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
