"""Nanoseconds of a core for a row that an embedding table gives or trains, and the memory of a row.

    python benchmarks/ps_tables.py [--runs 5]

A table of 1M rows of 16 float32 with Adam's slots, in batches of 26 x 512 ids: uniform ones, and log-uniform ones, where the n-th most
frequent id comes with a probability of about 1 / n (Zipf). A row is counted once for each id of a batch, as its user sees it; a push sums
the gradients of an id that repeats. The time is that of the processor, of one thread. The memory is that of the process, resident, before
and after 1M rows are made in random order. This is the storage alone: no transport.

The peers in the same run, each in a process of its own, as ours: `torch.nn.EmbeddingBag(sparse=True)` with `SparseAdam`, which has all
rows from the start and ids that are row numbers, and a dict of NumPy rows, as a Python program would write it.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import figures
import numpy

sys.path.insert(0, str(figures.ROOT / "src"))

ROWS, DIMENSION, BATCH, BATCHES = 1_000_000, 16, 26 * 512, 40
NUMBERS = DIMENSION * 4 * 3  # bytes of a row and its slots
WANTED = {"pulled": 500.0, "pushed": 1000.0}  # ns: 2M and 1M rows/s
PEERS = ("EmbeddingBag and SparseAdam", "dict of rows")
PROCESSES = multiprocessing.get_context("spawn")


def batches(kind: str) -> list[Any]:
    generator = numpy.random.default_rng(11)
    ids = generator.permutation(ROWS) * 7919  # the id of each rank; no row numbers
    if kind == "uniform":
        return [ids[generator.integers(0, ROWS, BATCH)] for _ in range(BATCHES)]
    return [ids[(ROWS ** generator.random(BATCH)).astype(numpy.int64) - 1] for _ in range(BATCHES)]


def resident() -> int:
    """Return the bytes of memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class Ours:
    blocks = 0  # 0: of the usual size

    def __init__(self) -> None:
        from trainmaster.ps.initializers import Uniform
        from trainmaster.ps.optimizers import Adam
        from trainmaster.ps.tables.table import Table

        options = {"block_rows": ROWS // self.blocks} if self.blocks else {}
        self.table, self.step = Table("table", DIMENSION, Uniform(), Adam(), **options), 0

    def fill(self, ids: Any) -> None:
        self.pull(ids)

    def pull(self, ids: Any) -> Any:
        return self.table.pull(ids, now=1.0)

    def push(self, ids: Any, gradients: Any) -> None:
        self.step += 1
        self.table.push(ids, gradients, self.step, now=1.0)


class ManyBlocks(Ours):
    """As many blocks as 100M rows have."""

    blocks = 400


class Torch:
    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        self.bags = torch.nn.EmbeddingBag(ROWS, DIMENSION, sparse=True, mode="sum")
        self.optimizer = torch.optim.SparseAdam(list(self.bags.parameters()))
        self.offsets = torch.arange(BATCH)

    def fill(self, ids: Any) -> None:
        pass

    def pull(self, ids: Any) -> Any:
        with self.torch.no_grad():
            return self.bags(self.torch.from_numpy(ids // 7919), self.offsets[: len(ids)])

    def push(self, ids: Any, gradients: Any) -> None:
        numbers, values = self.torch.from_numpy(ids // 7919), self.torch.from_numpy(gradients)
        self.bags.weight.grad = self.torch.sparse_coo_tensor(
            numbers[None], values, (ROWS, DIMENSION), check_invariants=False
        )
        self.optimizer.step()


class Dict:
    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}
        self.step = 0

    def fill(self, ids: Any) -> None:
        generator = numpy.random.default_rng(1)
        for number in ids.tolist():
            row = numpy.zeros((3, DIMENSION), numpy.float32)
            row[0] = generator.random(DIMENSION, numpy.float32) * 0.1 - 0.05
            self.rows[number] = row

    def pull(self, ids: Any) -> Any:
        return numpy.stack([self.rows[number][0] for number in ids.tolist()])

    def push(self, ids: Any, gradients: Any) -> None:
        self.step += 1
        rate = 0.001 * (1 - 0.999**self.step) ** 0.5 / (1 - 0.9**self.step)
        sums: dict[int, Any] = {}
        for number, gradient in zip(ids.tolist(), gradients, strict=True):
            sums[number] = sums[number] + gradient if number in sums else gradient
        for number, gradient in sums.items():
            values, momentum, velocity = self.rows[number]
            momentum += (gradient - momentum) * 0.1
            velocity += (gradient * gradient - velocity) * 0.001
            values -= rate * momentum / (numpy.sqrt(velocity) + 1e-7)


def measured(way: type[Ours | Torch | Dict]) -> dict[str, float]:
    """Return nanoseconds for a row by what was done and the kind of ids, and "memory": bytes for a row."""
    for kind in ("uniform", "zipf"):
        batches(kind)  # NumPy's generators have their memory
    ids = numpy.random.default_rng(5).permutation(ROWS) * 7919
    gradients = numpy.random.default_rng(6).normal(0, 0.01, (BATCH, DIMENSION)).astype(numpy.float32)
    store: Any = way()
    figures_of_way: dict[str, float] = {}
    before = resident()
    if way is Torch:
        before -= store.bags.weight.nbytes  # it has its rows already
    for begin in range(0, ROWS, BATCH):
        store.fill(ids[begin : begin + BATCH])
        store.push(ids[begin : begin + BATCH], gradients[: len(ids[begin : begin + BATCH])])
    figures_of_way["memory"] = (resident() - before) / ROWS
    calls: dict[str, Callable[[Any], Any]] = {"pulled": store.pull, "pushed": lambda ids: store.push(ids, gradients)}
    for kind in ("uniform", "zipf"):
        prepared = batches(kind)[: 8 if way is Dict else BATCHES]
        for name, call in calls.items():
            call(prepared[0])
            begin_time = time.process_time()
            for batch in prepared:
                call(batch)
            took = time.process_time() - begin_time
            figures_of_way[f"{name} {kind}"] = took * 1e9 / (len(prepared) * BATCH)
    return figures_of_way


def measure(runs: int) -> list[figures.Row]:
    ways = {"table": Ours, "400 blocks": ManyBlocks, "EmbeddingBag and SparseAdam": Torch, "dict of rows": Dict}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, way in ways.items():
            with PROCESSES.Pool(1) as pool:
                results[name].append(pool.apply(measured, (way,)))
    rows = []
    for figure in results["table"][0]:
        if figure == "memory":
            continue
        done, kind = figure.split()
        ours = [result[figure] for result in results["table"]]
        note = f"{1e3 / statistics.median(ours):.1f}M rows/s; {distinct(kind):.0%} of a batch's ids are distinct"
        many = [result[figure] for result in results["400 blocks"]]
        rows.append(
            figures.Row(
                f"a row {done}, {kind} ids, 400 blocks", many, "ns", WANTED[done], note="as many as 100M rows have"
            )
        )
        rows += [
            figures.Row(
                f"a row {done}, {kind} ids",
                ours,
                "ns",
                WANTED[done],
                peer,
                [result[figure] for result in results[peer]],
                note=note,
            )
            for peer in PEERS
        ]
    ours = [result["memory"] for result in results["table"]]
    note = f"{statistics.median(ours) / NUMBERS:.2f} x the {NUMBERS} bytes of its numbers"
    rows += [
        figures.Row(
            "the memory of a row with slots",
            ours,
            "bytes",
            1.25 * NUMBERS,
            peer,
            [result["memory"] for result in results[peer]],
            note=note,
        )
        for peer in PEERS
    ]
    return rows


def distinct(kind: str) -> float:
    return statistics.mean(len(numpy.unique(batch)) / BATCH for batch in batches(kind))


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
