"""A worker that joins a running job: from `tm scale` to its program's first step, beside a cold start of the same program by hand.

    python benchmarks/grown_worker.py [--runs 10]

A PyTorch program is scaled from one worker to two, and back, again and again: each time the new worker begins in a new container. Where its
tasks restart alone, the figure is what that takes more than the same program started by hand, with as many threads, beside the first
worker. Where they restart together, the new worker's imports are done before the others stop: the figure counts from there.
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
from collections.abc import Mapping
from pathlib import Path

import figures

LIMIT = 60.0  # s for anything that is waited for
PROGRAM = r"""
import os, time
import torch

def main():
    name = os.environ.get("TRAINMASTER_INDEX", "hand")
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    told = False
    while not os.path.exists("stop"):
        optimizer.zero_grad()
        model(torch.ones(32, 256)).square().mean().backward()
        optimizer.step()
        if not told:
            told = True
            with open("first.log", "a") as log:
                log.write(f"{name} {os.getpid()} {time.time()}\n")
        time.sleep(0.05)

main()
"""


def until(holds: object, what: str) -> None:
    end = time.monotonic() + LIMIT
    while not holds():  # type: ignore[operator]
        if time.monotonic() > end:
            raise RuntimeError(f"{what} took more than {LIMIT:g} s")
        time.sleep(0.005)


def firsts(folder: Path) -> list[tuple[str, int, float]]:
    """The first steps so far: who, its process, when."""
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / "first.log").read_text().splitlines()
        return [
            (name, int(pid), float(at)) for name, pid, at in (line.split() for line in lines if line.count(" ") == 2)
        ]
    return []


def by_hand(folder: Path, environ: Mapping[str, str]) -> float:
    known, began = len(firsts(folder)), time.time()
    process = subprocess.Popen([sys.executable, "train.py"], env={**environ, "OMP_NUM_THREADS": "1"}, cwd=folder)
    try:
        until(lambda: len(firsts(folder)) > known, "a start by hand")
        return firsts(folder)[-1][2] - began
    finally:
        process.kill()
        process.wait()


def tm(*words: str, environ: Mapping[str, str], folder: Path) -> str:
    run = subprocess.run([figures.TM, *words], env=environ, cwd=folder, check=True, capture_output=True, text=True)
    return run.stdout


def grown(folder: Path, job: str, environ: Mapping[str, str]) -> tuple[float, float]:
    """Scale the job to two workers and back. Return the times until the new one has done a step: from the command, and from the change of
    the members, which may come later.
    """
    known, began = len(firsts(folder)), time.time()
    tm("scale", job, "worker=2", environ=environ, folder=folder)
    # The first one may begin anew with it.
    until(lambda: any(name == "1" for name, _, _ in firsts(folder)[known:]), "a worker's start")
    _, pid, at = next(row for row in firsts(folder)[known:] if row[0] == "1")
    told = map(json.loads, tm("events", job, "--json", environ=environ, folder=folder).splitlines())
    changed = [event["at"] for event in told if event["type"] == "resized"][-1]
    tm("scale", job, "worker=1", environ=environ, folder=folder)
    until(lambda: not os.path.exists(f"/proc/{pid}"), "a worker's end")
    time.sleep(2.0)
    return at - began, at - changed


def measured(runs: int, environ: Mapping[str, str], restart: str) -> tuple[list[float], list[float], list[float]]:
    """Return the times of `runs` growths from the command, from the change, and of as many starts by hand."""
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as place:
        folder = Path(place)
        (folder / "train.py").write_text(PROGRAM)
        role = {"command": [sys.executable, "train.py"], "replicas": {"min": 1, "max": 2}, "threads": 1, "workdir": "share",
                "restart": restart, "resources": {"cores": 0.1}}  # fmt: skip
        # It keeps to one worker until the order to grow: nothing grows by itself.
        job = {"name": "grown", "framework": "generic", "gang": restart == "group", "roles": {"worker": role}}
        (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
        name = tm("submit", "job.yaml", environ=environ, folder=folder).split()[-1].rpartition("/")[2]
        try:
            until(lambda: firsts(folder), "the first worker's start")
            tm("scale", name, "worker=1", environ=environ, folder=folder)
            time.sleep(10.0)
            pairs = [(*grown(folder, name, environ), by_hand(folder, environ)) for _ in range(runs)]
            return [pair[0] for pair in pairs], [pair[1] for pair in pairs], [pair[2] for pair in pairs]
        finally:
            (folder / "stop").touch()
            subprocess.run([figures.TM, "kill", name], env=environ, cwd=folder, check=False, stdout=subprocess.DEVNULL)
            with contextlib.suppress(ProcessLookupError):
                for _, pid, _ in firsts(folder)[-1:]:
                    os.kill(pid, signal.SIGKILL)


def measure(runs: int) -> list[figures.Row]:
    with figures.place() as environ:
        ours, _, hand = measured(runs, environ, "task")
        command, change, cold = measured(runs, environ, "group")
    over = [max(0.0, grown - by_hand) for grown, by_hand in zip(ours, hand, strict=True)]
    return [
        figures.Row("a grown worker's first step, from `tm scale`", ours, "s", None, "by hand", hand),
        figures.Row("the same, more than by hand", over, "s", 0.30),
        figures.Row(
            "in a group that restarts together, from the stop of the others", change, "s", 1.0, "by hand", cold
        ),
        figures.Row("the same, from `tm scale`", command, "s", None),
    ]


if __name__ == "__main__":
    figures.main(measure, 10, __doc__)
