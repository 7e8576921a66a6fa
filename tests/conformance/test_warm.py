"""Warm restarts of real PyTorch programs: a restarted program begins with its imports done, and sees what a cold start sees."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import Engine, Submitted
from waiting import until

from trainmaster.core.errors import TrainmasterError

pytestmark = [pytest.mark.needs("frameworks"), pytest.mark.needs("local-master")]
LIMIT = 600.0  # s

# It trains with DDP, a checkpoint each step, and prints what it sees. RANK 1 waits for its SIGKILL in the first attempt.
PROGRAM = r"""
import json, os, random, resource, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

NOT = ("__builtins__", "__warningregistry__")


def seen():
    import numpy

    status = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "environ": sorted(os.environ), "cwd": os.getcwd(), "path": sys.path,
        "main": {k: repr(v).split(" object at ")[0] for k, v in vars(main).items() if k[:2] == "__" and k not in NOT},
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")], "umask": status["Umask"], "flags": repr(sys.flags),
        "kinds": [os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in range(3)],
        "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
        "streams": [[s.name, s.encoding, s.line_buffering, s.write_through, s.fileno()] for s in (sys.stdin, sys.stdout, sys.stderr)],
        "title": open("/proc/self/cmdline").read(), "name": open("/proc/self/comm").read(),
        "torch": [torch.get_num_threads(), torch.cuda.is_initialized()], "environ_type": repr(type(os.environ)),
    }, [random.random(), float(numpy.random.rand())]


def main():
    begun = "torch._dynamo" in sys.modules  # only a template has it by now
    descriptors = sorted(os.listdir("/proc/self/fd"))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # imports torch._dynamo, which sets TORCHINDUCTOR_CACHE_DIR
    step = 0
    if os.path.exists("state.pt"):
        state = torch.load("state.pt")
        model.load_state_dict(state["model"])
        step = state["step"]
    print(json.dumps([begun, os.environ["TRAINMASTER_ATTEMPT"], descriptors, *seen()]), flush=True)
    print("from step", step, flush=True)
    while True:
        loss = model(torch.ones(256, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "step": step}, ".state.pt")
            os.replace(".state.pt", "state.pt")
        time.sleep(0 if os.path.exists("go") else 0.2)
        stop = torch.tensor(float(os.path.exists("go")))
        dist.broadcast(stop, 0)
        if stop and step >= 20:
            break
    print("at step", step, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def job(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Submitted]:
    engine.write("train.py", PROGRAM)
    role = {
        "command": f"{sys.executable} train.py --lr 0.1", "replicas": 2, "restart": "group", "workdir": "share",
        "resources": {"memory": "1GiB"}, **getattr(request, "param", {}),
    }  # fmt: skip
    return engine.submit({"worker": role}, framework="pytorch")


def agent_log(job: Submitted, index: int) -> str:
    from trainmaster.host.places import job_storage

    try:
        return (job_storage(job.id) / "logs" / f"worker-{index}" / "agent.log").read_text()
    except OSError:
        return ""


def look(job: Submitted, attempt: int, index: int) -> list[Any]:
    """Wait until the program of an attempt has said what it sees, and trains."""

    def lines() -> list[str]:
        try:
            return job.lines(f"worker:{index}", attempt)
        except TrainmasterError:
            return []

    until(lambda: any("from step" in line for line in lines()), LIMIT, what=lambda: f"{lines()}")
    return list(json.loads(next(line for line in lines() if line.startswith("["))))


def kill(job: Submitted, attempt: int) -> None:
    pid = next(
        event["pid"] for event in job.told("started") if (event["task"], event["attempt"]) == ("worker:1", attempt)
    )
    if Path(f"/proc/{pid}/cmdline").read_text().startswith("/bin/sh"):  # the shell of a cold start
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)


@pytest.mark.full
def test_a_killed_ddp_program_begins_again_warm_and_sees_what_a_cold_one_sees(engine: Engine, job: Submitted) -> None:
    cold = [look(job, 1, index) for index in range(2)]
    for index in range(2):
        until(lambda index=index: "a template has done" in agent_log(job, index), LIMIT, what=lambda: agent_log(job, 0))
    kill(job, 1)
    warm = [look(job, 2, index) for index in range(2)]
    kill(job, 2)
    again = [look(job, 3, index) for index in range(2)]
    engine.write("go", "")
    status = job.succeeded(LIMIT)
    for index in range(2):
        assert agent_log(job, index).count("starts warm") == 2, agent_log(job, index)
        assert [cold[index][0], warm[index][0], again[index][0]] == [False, True, True]
        assert cold[index][2] == warm[index][2] == again[index][2]
        for name, value in cold[index][3].items():
            assert value == warm[index][3][name] == again[index][3][name], name
        assert all(one != other for one, other in zip(warm[index][4], again[index][4], strict=True))
        assert [warm[index][1], again[index][1]] == ["2", "3"]
    assert status["restarts"] == 2
    steps = [
        int(line.rpartition(" ")[2])
        for attempt in (1, 2, 3)
        for line in job.lines("worker:0", attempt)
        if "from step" in line
    ]
    assert steps[0] == 0 < steps[1] < steps[2], "it went on from its checkpoint"


@pytest.mark.full
@pytest.mark.parametrize("job", [{"warm": False}], indirect=True)
def test_warm_restarts_can_be_turned_off(engine: Engine, job: Submitted) -> None:
    for index in range(2):
        look(job, 1, index)
    kill(job, 1)
    assert look(job, 2, 1)[0] is False
    engine.write("go", "")
    job.succeeded(LIMIT)
    assert "template" not in agent_log(job, 0) + agent_log(job, 1)


@pytest.mark.full
@pytest.mark.parametrize(
    "job", [{"replicas": {"min": 2, "max": 3}, "resources": {"memory": "1GiB", "cores": 0.5}}], indirect=True
)
def test_a_newcomer_begins_warm_in_a_new_container(engine: Engine, job: Submitted) -> None:
    cold = [look(job, 1, index) for index in range(3)]
    assert engine.tm("scale", job.id, "worker=2").returncode == 0
    look(job, 2, 0)
    assert engine.tm("scale", job.id, "worker=3").returncode == 0
    newcomer = look(job, 2, 2)
    until(lambda: "template" in agent_log(job, 2).partition("starts warm")[2], LIMIT, what=lambda: agent_log(job, 2))
    kill(job, 3)
    assert look(job, 3, 2)[0] is True
    engine.write("go", "")
    job.succeeded(LIMIT)
    assert "no template" not in agent_log(job, 2)
    warmed_up = job.told("warmed-up")
    assert [(event["task"], event["attempt"], event["why"]) for event in warmed_up] == [("worker:2", 2, "warm")]
    assert warmed_up[0]["n"] < job.told("resized")[-1]["n"], "its peers ran on meanwhile"
    assert newcomer[0] is True, agent_log(job, 2)
    assert newcomer[2] == cold[2][2]
    assert newcomer[3] == cold[2][3]
