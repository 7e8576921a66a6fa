"""Ranks of an unmodified DDP program are killed one after another, at random moments: each time it goes on, and its steps stay exact."""

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
BACK = 120.0  # s; a cold start of four ranks on a loaded machine
WITHIN = 0.5  # s from a step after the last kill to the next kill
# Each step is stored by rank 0, as its number and the model, under its own name. At the end all are compared with steps of one process.
PROGRAM = r"""
import os, time
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


def saved():
    return sorted(int(name) for name in os.listdir("steps") if name.isdigit())


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
            torch.save(raw.state_dict(), "steps/new")
            os.replace("steps/new", f"steps/{step}")
        time.sleep(0.02)
        over = torch.tensor(float(os.path.exists("over")))
        dist.broadcast(over, 0)
        if over:
            break
    if dist.get_rank() == 0:
        assert saved() == list(range(1, step + 1)), "a step is missing"
        alone = model()
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.001)
        for number in range(step):
            advance(alone, optimizer, number)
            kept = torch.load(f"steps/{number + 1}")
            assert all(torch.allclose(kept[name], value) for name, value in alone.state_dict().items()), number + 1
        print("exact", step, flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
"""


def kill_in_a_row(engine: Local, ranks: int, count: int, seed: int) -> None:
    """Kill a random rank so often, each time once there is a new step after the last kill."""
    choice = random.Random(seed)
    engine.write("train.py", PROGRAM)
    steps = engine.folder / "steps"
    steps.mkdir()
    role = {
        "command": [sys.executable, "train.py"], "replicas": ranks, "threads": 1, "workdir": "share", "resources": {"cores": 0.05},
        "restart": {"scope": "group", "limit": count},
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
    assert f"exact {newest(steps)}" in job.lines("worker:0", count + 1)
    assert all(log.read_text().count("starts warm") == count for log in logs), [log.read_text() for log in logs]


def newest(steps: Path) -> int:
    return max((int(name) for name in os.listdir(steps) if name.isdigit()), default=0)


def test_5_kills_of_2_ranks(engine: Local, seeds: Any) -> None:
    for seed in seeds(1):
        kill_in_a_row(engine, 2, 5, seed)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 4])
def test_20_kills(engine: Local, seeds: Any, ranks: int) -> None:
    for seed in seeds(1):
        kill_in_a_row(engine, ranks, 20, seed)


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [2, 4])
def test_200_kills(engine: Local, seeds: Any, ranks: int) -> None:
    for seed in seeds(1):
        kill_in_a_row(engine, ranks, 200, seed)
