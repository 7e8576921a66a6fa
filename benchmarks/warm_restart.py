"""Death of one rank to the next new step: an unmodified DDP program of 2 and of 4 workers that stores a checkpoint each step.

    python benchmarks/warm_restart.py [--runs 10]

Rank 1 is killed by SIGKILL while both train, in steps of 50 ms. The time counts until rank 0 has stored a step that nobody had done before.
Ours runs with warm restarts and without (`warm: false`). The peer, in the same run with the same program and interpreter, is torchrun with
a new store and a new port for each attempt (TORCH_DISABLE_SHARE_RDZV_TCP_STORE): with the store of its agent, ranks read addresses of the
attempt before, and most kills end in a hang. Each launcher gets its kills one after another, each after half a minute of training.
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
from collections.abc import Iterator, Mapping
from pathlib import Path

import figures

FIRST, BETWEEN = (
    30.0,
    6.0,
)  # s of training before the first kill, and before each other; a template is made in the first ones
LIMIT = 60.0  # s in which a group must be back; where it is not, the rest is not measured
PROGRAM = r"""
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("gloo")
    rank, step = dist.get_rank(), 0
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    if os.path.exists("state.pt"):
        state = torch.load("state.pt")
        model.load_state_dict(state["model"]), optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while not os.path.exists("stop"):
        time.sleep(0.05)
        loss = model(torch.ones(32, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "state.new")
            os.replace("state.new", "state.pt")
        with open(f"rank{rank}.log", "a") as log:
            log.write(f"{os.getpid()} {step} {time.monotonic()}\n")
    os._exit(0)

main()
"""


def steps(folder: Path, rank: int) -> list[tuple[int, int, float]]:
    """The steps of a rank so far: process, number, time."""
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / f"rank{rank}.log").read_text().splitlines()
        return [
            (int(pid), int(step), float(at))
            for pid, step, at in (line.split() for line in lines if line.count(" ") == 2)
        ]
    return []


def kills(folder: Path, count: int) -> Iterator[float]:
    """Kill rank 1 so often; the times until there was a new step."""
    for _ in range(count):
        known = len(steps(folder, 0))
        _until(lambda known=known: len(steps(folder, 0)) > known and len(steps(folder, 1)) > 0, LIMIT)
        time.sleep(BETWEEN)
        pid, last = steps(folder, 1)[-1][0], steps(folder, 0)[-1][1]
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)

        def again(last: int = last, pid: int = steps(folder, 0)[-1][0]) -> list[float]:
            return [at for process, step, at in steps(folder, 0) if process != pid and step > last]

        if not _until(lambda again=again: bool(again()), LIMIT):
            return
        yield again()[0] - killed


def _until(holds: object, limit: float) -> bool:
    end = time.monotonic() + limit
    while not holds():  # type: ignore[operator]
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def measured(name: str, ranks: int, runs: int, environ: Mapping[str, str]) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as place:
        folder = Path(place)
        (folder / "train.py").write_text(PROGRAM)
        role = {
            "command": [sys.executable, "train.py"], "replicas": ranks, "threads": 1, "workdir": "share", "warm": name == "warm",
            "restart": {"scope": "group", "limit": runs + 1}, "resources": {"cores": 0.1},
        }  # fmt: skip
        job = {"name": "warm", "framework": "pytorch", "roles": {"worker": role}}
        (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
        command = [figures.TM, "run", "job.yaml"]
        if name == "torchrun":
            command = [
                str(figures.BIN / "torchrun"),
                "--standalone",
                "--nproc-per-node",
                str(ranks),
                "--max-restarts",
                str(runs + 1),
                "train.py",
            ]
            environ = {
                **environ,
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            }
        process = subprocess.Popen(
            command, env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            times = list(kills(folder, runs))
            (folder / "stop").touch()
            process.wait(LIMIT)
            return times
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(LIMIT)


def measure(runs: int) -> list[figures.Row]:
    return [row for ranks in (2, 4) for row in measured_with(ranks, runs)]


def measured_with(ranks: int, runs: int) -> list[figures.Row]:
    with figures.place() as environ:
        times = {name: measured(name, ranks, runs, environ) for name in ("warm", "cold", "torchrun")}
    if not all(times.values()):
        raise RuntimeError(f"a group never came back: {times}")
    rows = []
    for name, limit, least in (("warm", 0.30, 1 / 0.12), ("cold", None, None)):
        pairs = min(len(times[name]), len(times["torchrun"]))
        note = f"came back: {len(times[name])} of {runs}, torchrun {len(times['torchrun'])} of {runs}"
        peer = times["torchrun"][:pairs]
        figure = f"kill of one of {ranks} ranks to the next new step, {name}"
        rows.append(figures.Row(figure, times[name][:pairs], "s", limit, "torchrun", peer, least, note))
    return rows


if __name__ == "__main__":
    figures.main(measure, 10, __doc__)
