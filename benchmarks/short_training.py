"""A training's beginning: steps a second of two ranks under `tm run` and under torchrun, over the first 300 steps and over 5,000.

    python benchmarks/short_training.py [--runs 5]

The program is PyTorch's DistributedDataParallel over gloo, each rank with one thread, so that two ranks use two cores. Rank 0 takes the
time from its first step on. Launchers run one after another, and change places in each run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import figures

STEPS = (300, 5000)
LIMIT = 900.0  # s of one run
PROGRAM = """
import sys, time, torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
pixels, labels = torch.rand(128, 784), torch.randint(10, (128,))
began = time.monotonic()
for step in range(1, int(sys.argv[-1]) + 1):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(pixels), labels).backward()
    optimizer.step()
    if dist.get_rank() == 0 and step in (300, 5000):
        print(f"steps={step} rate={step / (time.monotonic() - began):.3f}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""
RATE = re.compile(rb"steps=(\d+) rate=([0-9.]+)")


def rates(command: list[str], environ: dict[str, str], folder: str) -> dict[int, float]:
    """Run a training to its end; return the rate over its first steps, by their number."""
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stdout[-2000:]!r} {done.stderr[-2000:]!r}")
    return {int(steps): float(rate) for steps, rate in RATE.findall(done.stdout + done.stderr)}


def measure(runs: int) -> list[figures.Row]:
    found: dict[str, list[dict[int, float]]] = {"ours": [], "torchrun": []}
    with figures.place() as environ, tempfile.TemporaryDirectory() as folder:
        environ = {**environ, "OMP_NUM_THREADS": "1"}
        program = Path(folder) / "train.py"
        program.write_text(PROGRAM)
        words = [str(program), str(STEPS[-1])]
        commands = {
            "ours": [
                figures.TM,
                "run",
                "-n",
                "2",
                "--framework",
                "pytorch",
                "--memory",
                "1GiB",
                "--",
                sys.executable,
                *words,
            ],
            "torchrun": [str(figures.BIN / "torchrun"), "--nproc_per_node", "2", *words],
        }
        for run in range(runs):
            for name in sorted(commands, reverse=bool(run % 2)):
                found[name].append(rates(commands[name], dict(environ), folder))
    return [
        figures.Row(
            f"steps a second of 2 ranks, the first {steps:,}", [rate[steps] for rate in found["ours"]], "steps/s", None,
            "torchrun", [rate[steps] for rate in found["torchrun"]], 0.98, more_is_better=True,
        )
        for steps in STEPS
    ]  # fmt: skip


if __name__ == "__main__":
    os.environ.pop("OMP_NUM_THREADS", None)
    figures.main(measure, 5, __doc__)
