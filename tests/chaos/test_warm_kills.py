"""Ranks of a PyTorch program are killed one after another, at random moments: each time it goes on, and its steps stay exact.

The program is an unmodified one of DDP that stores each step, or one with `runtime.elastic` that stores none.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import Local
from waiting import until

from trainmaster.host import processes
from trainmaster.host.places import job_storage

pytestmark = pytest.mark.needs("frameworks")
BACK = 600.0  # s; templates of four ranks on a loaded machine
WITHIN = 0.5  # s from a step after the last kill to the next kill
# Each step is stored, as its number and the model, under its own name. At the end all are compared with steps of one process: a step moves
# a parameter by 1e-4 and more, and thousands of them with sums of three round it by less than 1e-6.
SHARED = r"""
import itertools, os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 1)


def advance(model, optimizer, step):
    optimizer.zero_grad()
    (model(torch.full((4, 8), 1 + step % 5.0)) - step % 3).square().mean().backward()
    optimizer.step()


def store(raw, step, name):
    torch.save(raw.state_dict(), f"steps/{name}")
    os.replace(f"steps/{name}", f"steps/{step}")


def saved():
    return sorted(int(name) for name in os.listdir("steps") if name.isdigit())


def compare(step):
    assert saved()[:step] == list(range(1, step + 1)), "a step is missing"
    alone = model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.001)
    for number in range(step):
        advance(alone, optimizer, number)
        kept = torch.load(f"steps/{number + 1}")
        assert all(torch.allclose(kept[name], value, atol=1e-5) for name, value in alone.state_dict().items()), number + 1
    print("exact", step, flush=True)
"""
UNMODIFIED = (
    SHARED
    + r"""

def main():
    dist.init_process_group("gloo")
    raw = model()
    step = max(saved(), default=0)
    if step:
        raw.load_state_dict(torch.load(f"steps/{step}"))
    trained = DistributedDataParallel(raw)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.001)
    while True:
        advance(trained, optimizer, step)
        step += 1
        if dist.get_rank() == 0:
            store(raw, step, "new")
        time.sleep(0.02)
        over = torch.tensor(float(os.path.exists("over")))
        dist.broadcast(over, 0)
        if over:
            break
    if dist.get_rank() == 0:
        compare(step)
    dist.barrier()
    dist.destroy_process_group()


main()
"""
)
# All members store what they have, which is the same: so a step is there once any of those who live on has it.
WITH_LIBRARY = (
    SHARED
    + r"""

def main():
    from trainmaster.runtime import task
    from trainmaster.runtime.elastic.torch_training import Training

    raw = model()
    training = Training(model=raw, optimizer=torch.optim.SGD(raw.parameters(), lr=0.001))
    for _ in training.batches(itertools.repeat(None)):
        step = training.steps
        with training.step():
            (raw(torch.full((4, 8), 1 + step % 5.0)) - step % 3).square().mean().backward()
        if training.steps > step:
            store(raw, training.steps, f"new-{task().index}")
            if training.size == int(os.environ["RANKS"]):
                open(f"full/{training.steps}", "w").close()
        time.sleep(0.02)
        if os.path.exists("over"):
            break
    training.leave()
    if task().index == 0:
        compare(training.steps)


main()
"""
)


def kill_in_a_row(engine: Local, ranks: int, count: int, seed: int, scope: str = "group") -> None:
    """Kill a random rank so often, each time once there is a new step of all ranks after the last kill."""
    choice = random.Random(seed)
    engine.write("train.py", UNMODIFIED if scope == "group" else WITH_LIBRARY)
    for name in ("steps", "full"):
        (engine.folder / name).mkdir()
    steps = engine.folder / ("steps" if scope == "group" else "full")  # of all ranks
    replicas = ranks if scope == "group" else {"min": ranks - 1, "max": ranks}
    role = {
        "command": [sys.executable, "train.py"], "replicas": replicas, "threads": 1, "workdir": "share", "resources": {"cores": 0.05},
        "restart": {"scope": scope, "limit": count}, "env": {"RANKS": str(ranks)},
    }  # fmt: skip
    job = engine.submit({"worker": role}, framework="pytorch")
    logs = [job_storage(job.id) / "logs" / f"worker-{index}" / "agent.log" for index in range(ranks)]
    until(
        lambda: newest(steps) > 0 and all("a template has done" in log.read_text() for log in logs),
        BACK,
        what="the templates",
    )
    last = 0
    for number in range(count):
        until(
            lambda last=last: newest(steps) > last,
            BACK,
            what=lambda n=number: f"a step after {n} kills: {job.status()}",
        )
        moment = time.monotonic() + choice.random() * WITHIN
        until(lambda moment=moment: time.monotonic() >= moment)
        pid = choice.choice(sorted(mark.process.pid for mark in processes.living(job.id, processes.PROGRAM)))
        os.kill(pid, signal.SIGKILL)
        last = newest(steps) + 1  # a step that was complete may be stored yet
    until(lambda: newest(steps) > last, BACK, what=lambda: f"a step after the last kill: {job.status()}")
    engine.write("over", "")
    status = job.succeeded(BACK)
    assert status["restarts"] == count, "each kill was one restart"
    assert [line for line in job.lines("worker:0") if line.startswith("exact")], job.lines("worker:0")
    starts = count * (ranks if scope == "group" else 1)
    told = "".join(log.read_text() for log in logs)
    slow = told.count(
        "starts cold: it does not fork within"
    )  # on a loaded machine: it is the better choice then, and the next one too
    cold = slow + told.count("starts cold: the template is not ready yet")
    assert told.count("starts warm") + cold == starts, told
    assert cold == 0 or slow > 0, told
    assert "starts warm" in told


def newest(steps: Path) -> int:
    return max((int(name) for name in os.listdir(steps) if name.isdigit()), default=0)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 4])
def test_20_kills(engine: Local, seeds: Any, ranks: int) -> None:
    for seed in seeds(1):
        kill_in_a_row(engine, ranks, 20, seed)


@pytest.mark.full
def test_20_kills_of_members(engine: Local, seeds: Any) -> None:
    for seed in seeds(1):
        kill_in_a_row(engine, 3, 20, seed, "task")


@pytest.mark.soak
@pytest.mark.parametrize(("ranks", "scope"), [(2, "group"), (4, "group"), (3, "task"), (4, "task")])
def test_200_kills(engine: Local, seeds: Any, ranks: int, scope: str) -> None:
    for seed in seeds(1):
        kill_in_a_row(engine, ranks, 200, seed, scope)
