"""Rows a second from one feeder process to one reader process on the same host.

    python benchmarks/feed_ring.py [--runs 5]

A row is 784 float32 and a label, in batches of some 1 MiB. Ours: the ring in shared memory, its owner in a third process, as an agent is.
The feeder writes arrays that it has; the reader reads each value once, for a sum. The peers carry the same arrays in the same run: a
`multiprocessing.Queue` and a `multiprocessing.Pipe`, which pickle. Spark is not in it: this is what the ring leaves for the rest of the
way. Rows a second of CPU time are of all processes, with their starts; they say more than the clock where the machine has other work.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import figures
import numpy as np

sys.path.insert(0, str(figures.ROOT / "src"))

WIDTH, ROWS = 784, 334  # a batch of 1 MiB
ALL_ROWS = 200_000
BATCHES = ALL_ROWS // ROWS
RING = 32 * 2**20
WANTED = 300_000  # rows/s

PROCESSES = multiprocessing.get_context("spawn")


def batch() -> tuple[Any, Any]:
    return np.ones((ROWS, WIDTH), "f4"), np.ones(ROWS, "i8")


def own(path: str, ready: Any) -> None:
    from trainmaster.data.feed.owner import Owner

    async def run() -> None:
        owner = Owner(Path(path), RING)
        owner.open()
        ready.send(None)
        await asyncio.get_running_loop().run_in_executor(None, ready.recv)
        owner.ring.end()
        owner.settle()
        await asyncio.get_running_loop().run_in_executor(None, ready.recv)
        owner.close()

    asyncio.run(run())


def feed_ring(path: str, go: Any) -> None:
    from trainmaster.runtime.feed.feeder import Feeder
    from trainmaster.runtime.feed.layout import column_of

    pixels, labels = batch()
    with Feeder(path) as feeder:
        go.wait()
        for number in range(BATCHES):
            feeder.put((0, 0, number), [column_of("x", pixels), column_of("label", labels)])
        feeder.flush()


def feed_queue(queue: Any, go: Any) -> None:
    pixels, labels = batch()
    go.wait()
    for _ in range(BATCHES):
        queue.put((pixels, labels))


def feed_pipe(pipe: Any, go: Any) -> None:
    pixels, labels = batch()
    go.wait()
    for _ in range(BATCHES):
        pipe.send((pixels, labels))


def rate(feeder: Any, go: Any, batches: Iterator[tuple[Any, Any]]) -> float:
    """Start a feeder, and return the rows a second until its last batch was read."""
    feeder.start()
    go.wait()
    begin, total = time.perf_counter(), 0
    for _ in range(BATCHES):
        pixels, labels = next(batches)
        total += int(pixels.sum()) // WIDTH + int(labels.sum())
        del pixels, labels
    took = time.perf_counter() - begin
    feeder.join()
    assert total == 2 * ROWS * BATCHES
    return ROWS * BATCHES / took


def ring() -> float:
    from trainmaster.runtime.feed.reader import Reader

    with tempfile.TemporaryDirectory() as folder:
        path, (ready, theirs), go = f"{folder}/ring.feed", PROCESSES.Pipe(), PROCESSES.Barrier(2)
        owner = PROCESSES.Process(target=own, args=(path, theirs))
        owner.start()
        ready.recv()
        with Reader(path) as reader:
            batches = ((batch["x"], batch["label"]) for batch in reader)
            measured = rate(PROCESSES.Process(target=feed_ring, args=(path, go)), go, batches)
            ready.send(None)
        ready.send(None)
        owner.join()
    return measured


def queue() -> float:
    queue, go = PROCESSES.Queue(maxsize=RING // 2**20), PROCESSES.Barrier(2)
    return rate(PROCESSES.Process(target=feed_queue, args=(queue, go)), go, iter(queue.get, None))


def pipe() -> float:
    (ours, theirs), go = PROCESSES.Pipe(), PROCESSES.Barrier(2)
    return rate(PROCESSES.Process(target=feed_pipe, args=(theirs, go)), go, iter(ours.recv, None))


def cpu_time() -> float:
    """Return the CPU time of this process and of its children that have ended, in seconds."""
    usages = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(runs: int) -> list[figures.Row]:
    ways: dict[str, Callable[[], float]] = {"ring": ring, "multiprocessing.Queue": queue, "multiprocessing.Pipe": pipe}
    by_clock: dict[str, list[float]] = {name: [] for name in ways}
    by_cpu: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, way in ways.items():
            before = cpu_time()
            by_clock[name].append(way() / 1000)
            by_cpu[name].append(ROWS * BATCHES / (cpu_time() - before) / 1000)
    note = f"wanted of a whole feed: {WANTED // 1000} k rows/s"
    return [
        figures.Row(
            figure, rates["ring"], unit, peer_name=name, peer=rates[name], least=1.0, note=note, more_is_better=True
        )
        for figure, unit, rates in (
            ("one feeder, one reader", "k rows/s", by_clock),
            ("the same, by CPU time", "k rows/s of a core", by_cpu),
        )
        for name in list(ways)[1:]
    ]


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
