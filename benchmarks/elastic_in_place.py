"""Death of one of N ranks to the survivors' next step, and to full size again: a PyTorch program that uses `trainmaster.runtime.elastic`.

    python benchmarks/elastic_in_place.py [--runs 10]

Three and four ranks train a model of 10 MB over gloo in steps of 50 ms, without any checkpoint. One after another is killed by SIGKILL; its
successor is forked from a warm template. The first time counts until each survivor has completed a step that it had not before, the second
until all ranks have completed a step together. The notes tell how many groups came back, the most steps that one survivor did again after
one kill, and whether the parameters of all ranks were equal after each step.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import figures

FIRST, BETWEEN = 30.0, 6.0  # s of training before the first kill, and before each other: a template is made meanwhile
LIMIT = 60.0  # s in which all ranks must be back
PROGRAM = r"""
import itertools, os, time
import torch
from trainmaster.runtime import task
from trainmaster.runtime.elastic.torch_training import Training

def main():
    model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024))
    training = Training(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.001))
    with open(f"rank{task().index}.log", "a") as log:
        for x in training.batches(torch.ones(32, 256) for _ in itertools.count()):
            if os.path.exists("stop"):
                os._exit(0)
            before = training.steps
            with training.step():
                time.sleep(0.05)
                model(x).square().mean().backward()
            total = sum(parameter.double().sum().item() for parameter in model.parameters())
            size = training.size if training.steps > before else 0  # 0: the step was interrupted, and is done again
            log.write(f"{os.getpid()} {training.steps} {size} {total!r} {time.monotonic()}\n")
            log.flush()

main()
"""


class Ranks:
    """The logs of all ranks: rows of process, step, members, sum of the parameters, time."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def rows(self, rank: int) -> list[list[str]]:
        with contextlib.suppress(FileNotFoundError):
            rows = [
                line.split()
                for line in (self.folder / f"rank{rank}.log").read_text().splitlines(keepends=True)
                if line[-1] == "\n"
            ]
            return [row for row in rows if len(row) == 5]
        return []

    def since(self, rank: int, at: float, size: int = 0) -> list[list[str]]:
        """The completed steps of a rank since a time, in rounds of this size where it is given."""
        return [
            row for row in self.rows(rank) if float(row[4]) > at and row[2] != "0" and (not size or int(row[2]) == size)
        ]

    def have_stepped(self, survivors: Sequence[int], at: float) -> bool:
        return all(self.since(rank, at, self.count - 1) for rank in survivors)

    def are_full(self, at: float) -> bool:
        return all(self.since(rank, at, self.count) for rank in range(self.count))


def until(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def kills(ranks: Ranks, runs: int) -> tuple[list[float], list[float], int]:
    """Kill ranks in turn. Return the times to the survivors' next step and to full size, and the most steps done again."""
    next_steps: list[float] = []
    full: list[float] = []
    again = 0
    if not until(lambda: ranks.are_full(0.0)):
        return next_steps, full, again
    time.sleep(FIRST - BETWEEN)
    for run in range(runs):
        time.sleep(BETWEEN)
        victim = run % ranks.count
        survivors = [rank for rank in range(ranks.count) if rank != victim]
        process = int(ranks.rows(victim)[-1][0])
        killed = time.monotonic()
        os.kill(process, signal.SIGKILL)
        if not until(lambda at=killed, ranks_=survivors: ranks.have_stepped(ranks_, at)):  # type: ignore[misc]
            break
        next_steps.append(max(float(ranks.since(rank, killed, ranks.count - 1)[0][4]) for rank in survivors) - killed)
        small = killed + next_steps[-1]
        if not until(lambda at=small: ranks.are_full(at)):  # type: ignore[misc]
            break
        full.append(max(float(ranks.since(rank, small, ranks.count)[0][4]) for rank in range(ranks.count)) - killed)
        for rank in survivors:
            again = max(again, sum(float(row[4]) > killed and row[2] == "0" for row in ranks.rows(rank)))
    return next_steps, full, again


def equal(ranks: Ranks) -> bool:
    sums = defaultdict(set)
    for rank in range(ranks.count):
        for _, step, size, total, _ in ranks.rows(rank):
            if size != "0":
                sums[step].add(total)
    return all(len(totals) == 1 for totals in sums.values())


def measured(count: int, runs: int, environ: dict[str, str]) -> list[figures.Row]:
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as place:
        folder = Path(place)
        (folder / "train.py").write_text(PROGRAM)
        role = {
            "command": [sys.executable, "train.py"], "replicas": {"min": 2, "max": count}, "threads": 1, "workdir": "share",
            "resources": {"cores": 0.25, "memory": "1GiB"}, "restart": {"scope": "task", "limit": runs + 1},
        }  # fmt: skip
        job = {"name": "elastic", "framework": "pytorch", "roles": {"worker": role}}
        (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
        process = subprocess.Popen(
            [figures.TM, "run", "job.yaml"], env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        ranks = Ranks(folder, count)
        try:
            next_steps, full, again = kills(ranks, runs)
            (folder / "stop").touch()
            process.wait(LIMIT)
            same = "equal" if equal(ranks) else "NOT EQUAL"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(LIMIT)
    if not full:
        raise RuntimeError(f"{count} ranks never came back")
    note = f"came back: {len(full)} of {runs}; at most {again} steps done again; parameters of all ranks {same}"
    return [
        figures.Row(f"kill of one of {count} ranks to the survivors' next step", next_steps, "s", 0.20, note=note),
        figures.Row(f"kill of one of {count} ranks to full size", full, "s", 0.50),
    ]


def measure(runs: int) -> list[figures.Row]:
    with figures.place() as environ:
        return [row for count in (3, 4) for row in measured(count, runs, environ)]


if __name__ == "__main__":
    figures.main(measure, 10, __doc__)
