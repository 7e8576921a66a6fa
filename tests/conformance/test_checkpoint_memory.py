"""States that a program saves by the runtime: its successor begins from memory, and a warning has the newest one stored."""

from __future__ import annotations

import json
import os

import pytest
from conformance.engines import Engine, python, role

TRAIN = """
    import os, pathlib, signal, time, torch
    from trainmaster import runtime
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    saved = runtime.checkpoint.load(into={"model": model, "optimizer": optimizer})
    begin = saved.step if saved else 0
    print("began at", begin, saved.source if saved else "the beginning", saved["sum"] if saved else 0, flush=True)
    for step in range(begin + 1, 11):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        total = float(sum(p.sum() for p in model.parameters()))
        runtime.checkpoint.save(step, {"model": model, "optimizer": optimizer, "sum": total}, every=1000)
        if step == 1:
            runtime.checkpoint.wait()
        print("step", step, total, flush=True)
        if step == 5 and os.environ["TRAINMASTER_ATTEMPT"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.needs("submitters-place")
def test_a_killed_programs_successor_begins_from_memory(engine: Engine) -> None:
    roles = {"worker": {**role(python(TRAIN)), "resources": {"cores": 0.5, "memory": "512MiB"}}}
    job = engine.submit(roles, checkpoint={"path": "ckpt", "every": "200ms", "url": engine.place("sets")})
    job.succeeded()
    first, second = job.lines(attempt=1), job.lines(attempt=2)
    assert first[0] == "began at 0 the beginning 0"
    assert second[0] == f"began at 5 memory {first[-1].split()[2]}"
    newest = max(name for name in engine.files("sets") if "/" not in name and name.endswith(".json"))
    files = [file["path"] for file in json.loads(engine.files("sets")[newest])["files"]]
    assert "state-00000010.json" in files, "the last state is stored at the program's end, and kept with the job"
    assert not [name for name in files if name.endswith(".part")]


WARNED = """
    import os, time
    from trainmaster import runtime
    saved = runtime.checkpoint.load()
    print("began at", saved.step if saved else 0, saved.source if saved else "", flush=True)
    if saved is None:
        runtime.checkpoint.save(1, {"x": b"1" * 1000})
        runtime.checkpoint.wait()
        for step in (2, 3):
            runtime.checkpoint.save(step, {"x": b"2" * 1000}, every=1000)
        print("waits, with", sum(name.endswith(".json") for name in os.listdir("ckpt")), "stored", flush=True)
        time.sleep(1000)
"""


@pytest.mark.needs("local-master")
def test_a_warning_has_the_newest_state_stored(engine: Engine) -> None:
    resources = {"cores": round(len(os.sched_getaffinity(0)) * 0.6, 2), "memory": "64MiB"}
    low = engine.submit(
        {"worker": {"command": python(WARNED), "resources": resources, "stop": {"grace": "1s"}}},
        name="low", framework="pytorch", checkpoint={"path": "ckpt", "every": "200ms", "url": engine.place("sets")},
    )  # fmt: skip
    low.until_line("waits, with 1 stored")
    high = engine.submit(
        {"worker": {"command": "true", "resources": resources}},
        name="high", framework="pytorch", priority=5,
    )  # fmt: skip
    high.succeeded()
    low.succeeded()
    assert low.told("warned")
    assert low.lines(attempt=2)[0] == "began at 3 stored"
