"""How training together grows with the workers: 1, 2, 4 and 8 of them on this machine, under `tm run` and under torchrun, in turn.

    python benchmarks/scaling.py [--runs 3]

A step computes for 100 ms and makes 25 MB of gradients in 25 layers, from the last to the first, which PyTorch's
DistributedDataParallel adds up over gloo while the earlier layers are still computed. The gradients are real; the computing is a
pause (`time.sleep`), as for a processor that a GPU computes for: with it on the machine's own cores, what would be measured is how
many of those there are. The adding up itself is done by these cores.

A rate is in steps of one worker: 8 workers that are as fast as one alone make 8. What torchrun lacks there too is the collective's;
what we lack more than it is ours.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import figures

WORKERS = (1, 2, 4, 8)
LAYERS, LAYER = 25, 250_000  # float32 parameters of a layer: 1 MB
COMPUTE = 0.1  # s of a step
WARM, STEPS = 5, 40
LEAST = 0.95  # of as many workers as there are
LIMIT = 600.0  # s of one run


def train() -> None:
    """Be one worker; rank 0 prints the median seconds of a step."""
    import torch
    import torch.distributed as dist
    from torch import nn

    class Pause(torch.autograd.Function):
        """Multiply by 1, and take a layer's part of the step going back."""

        @staticmethod
        def forward(context: object, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
            time.sleep(COMPUTE / LAYERS)
            return gradient

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.rand(LAYER))

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = Pause.apply(value + self.weights)
            return result

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*(Layer() for _ in range(LAYERS))), bucket_cap_mb=4)
    value, seconds = torch.zeros(LAYER), []
    for _ in range(WARM + STEPS):
        model.zero_grad()
        began = time.perf_counter()
        model(value).sum().backward()
        seconds.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(f"step={statistics.median(seconds[WARM:]):.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def ours(workers: int) -> list[str]:
    sizes = ["--replicas", str(workers), "--cores", "0.25", "--memory", "1GiB"]
    return [figures.TM, "run", "--framework", "pytorch", *sizes, "--", sys.executable, __file__, "worker"]


def theirs(workers: int) -> list[str]:
    torchrun = str(figures.BIN / "torchrun")
    return [
        torchrun,
        "--nnodes=1",
        f"--nproc-per-node={workers}",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
        __file__,
        "worker",
    ]


def step_seconds(command: Sequence[str], environ: dict[str, str]) -> float:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT, check=True)
    [line] = [line for line in done.stdout.splitlines() if "step=" in line]
    return float(line.partition("step=")[2])


def measure(runs: int) -> list[figures.Row]:
    rates: dict[tuple[str, int], list[float]] = {}
    with figures.place() as environ:
        environ = {**environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.path.dirname(__file__)}
        for _ in range(runs):
            for name, launch in {"tm": ours, "torchrun": theirs}.items():
                seconds = {workers: step_seconds(launch(workers), environ) for workers in WORKERS}
                for workers in WORKERS:
                    rates.setdefault((name, workers), []).append(workers * seconds[1] / seconds[workers])
    rows = []
    for workers in WORKERS[1:]:
        rate, peer, wanted = rates["tm", workers], rates["torchrun", workers], LEAST * workers
        note = f"wanted {wanted:g}: {'reached' if statistics.median(rate) >= wanted else 'not reached'}"
        figure = f"rate of {workers} workers"
        rows.append(figures.Row(figure, rate, "workers", None, "torchrun", peer, note=note, more_is_better=True))
    return rows


if __name__ == "__main__":
    train() if sys.argv[1:] == ["worker"] else figures.main(measure, 3, __doc__)
