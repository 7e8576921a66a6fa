"""The cost of keeping metrics for a master: processor time, memory, and bytes in the job's storage, for 3 tasks and for 1,000.

    python benchmarks/metrics.py [--runs 3]

Ten minutes of a job whose agents send a sample each 3 s, with three metrics of their program: eight series a task. The samples are
handed to the master's own code, whose clock is moved on; the storage is a directory. Each measurement has a process of its own. There is
no peer: torchrun keeps nothing.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import figures
from memory import pss

SECONDS, EVERY = 600, 3
MIB = 1024 * 1024


async def keep(tasks: int, folder: str) -> dict[str, float]:
    """Metrics of so many tasks, and what they cost."""
    from trainmaster.host.linux import one_heap
    from trainmaster.log.storage import LocalStorage
    from trainmaster.master.measuring import Measuring

    one_heap()  # as a master does
    now = 1e9

    async def show() -> None:
        pass

    measuring = Measuring(LocalStorage(folder), 1, lambda: now, show)
    await measuring.series([], None, 0.0)
    memory, began, most = pss("self"), time.process_time(), 0
    for second in range(SECONDS):
        now += 1.0
        for task in range(second % EVERY, tasks, EVERY):
            figure = (second * 7919 + task) % 1000 / 1000
            measuring.sample(
                f"worker:{task}",
                {"cpu": figure, "memory": 2**30 + second, "progress": second / SECONDS, "step": second * 10},
            )
            measuring.report(
                f"worker:{task}", {"metrics": {"loss": 1 / (second + 1), "accuracy": figure, "rate": 0.001}}
            )
        await measuring.series([], None, 0.0)
        keeper = measuring._keeper
        while keeper._queued > keeper._handled:  # noqa: ASYNC110  this clock is quicker than the thread that writes
            await asyncio.sleep(0.001)
        most = max(most, size(folder) if second % 10 == 0 else 0)
    await measuring.close()
    cost = (time.process_time() - began) / SECONDS
    return {"cpu": cost * 100, "memory": pss("self") - memory, "bytes": max(most, size(folder)) / MIB}


def size(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder, "metrics").glob("*") if path.exists())


def kept(tasks: int) -> dict[str, float]:
    from trainmaster.log.metrics.files import read_metrics
    from trainmaster.log.storage import LocalStorage

    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        cost = asyncio.run(keep(tasks, folder))
        began = time.process_time()
        series = read_metrics(LocalStorage(folder)).series()
        assert len(series) == 8 * tasks + 4, len(series)
        return cost | {"read": time.process_time() - began}


def measure(runs: int) -> list[figures.Row]:
    costs: dict[int, list[dict[str, float]]] = {3: [], 1000: []}
    for _ in range(runs):
        for tasks, rows in costs.items():
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                rows.append(process.submit(kept, tasks).result())
    limits = {3: (1.0, 4.0, 5.0, 0.5), 1000: (10.0, 25.0, 25.0, 5.0)}
    return [
        figures.Row(f"{name}, {tasks:,} tasks", [row[key] for row in rows], unit, limit)
        for tasks, rows in costs.items()
        for (key, name, unit), limit in zip(KINDS, limits[tasks], strict=True)
    ]


KINDS = (
    ("cpu", "a master's processor time for metrics", "%"),
    ("memory", "its memory for them", "MiB"),
    ("bytes", "the most that the storage has", "MiB"),
    ("read", "processor time to read all of them back", "s"),
)

if __name__ == "__main__":
    figures.main(measure, 3, __doc__)
