"""Two jobs of 4 on 6 slots of this machine, gang against elastic, for real; and how soon a program hears that its container is taken back.

    python benchmarks/elastic_local.py [--runs 3]

The smallest of ElasticDL's settings on the local engine: a slot is a sixth of the machine's cores. A job learns the digits with a real
model, from shards that its workers share; after each batch a worker waits, as it would for an accelerator, so that 8 of them fit on few
cores. The second job is submitted a quarter of a job's time after the first. *gang* is all workers or none, *elastic* `replicas: {min: 1,
max: 4}`.

use         tasks whose program runs, of the slots that the jobs there were could have used, from the first submit to the last end
wait        from the second submit to its first container
notice      from the master's knowing that a container is taken back to the program's callback (`runtime.warning`)
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import Row, main, place

SLOTS, WORKERS = 6, 4
SHARDS, PAUSE = (
    240,
    0.08,
)  # of a job; s that a worker waits after each of the 5 batches of a shard: a job takes some 30 s with 4 workers
PROGRAM = """
import time
import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from trainmaster import runtime

digits, labels = load_digits(return_X_y=True)
model = MLPClassifier(hidden_layer_sizes=(64,), random_state=1)
step = 0
for shard in runtime.shards("train").shards():
    rows = np.array([int(line) for line in shard.records()])
    for batch in np.array_split(rows, 5):
        model.partial_fit(digits[batch] / 16, labels[batch], classes=range(10))
        time.sleep(PAUSE)
    step += 1
    runtime.progress(step=step)
print(f"{model.score(digits / 16, labels):.4f}" if step else "nothing was left to read")
"""
LISTENER = """
import time
from trainmaster import runtime

runtime.warning(lambda warned: print(f"heard {time.time()}", flush=True))
print("ready", flush=True)
time.sleep(600)
"""


def two_jobs(folder: Path, environ: dict[str, str], elastic: bool) -> dict[str, float]:
    """Run both jobs to their end and look at them all the while."""
    from trainmaster import submit
    from trainmaster.host.machine import cores

    replicas: Any = {"min": 1, "max": WORKERS} if elastic else WORKERS
    resources = {"cores": round(cores() / SLOTS - 0.001, 3), "memory": "512MiB"}
    role = {
        "command": [sys.executable, "train.py"],
        "replicas": replicas,
        "resources": resources,
        "env": {"OMP_NUM_THREADS": "1"},
    }
    job = {
        "roles": {"worker": role},
        "gang": not elastic,
        "inputs": {"train": {"url": str(folder / "rows"), "as": "shards"}},
    }
    began = time.monotonic()
    runs = [submit({"name": "first", **job}, directory=folder)]
    submitted = [began]
    used = usable = 0.0
    before, ended = began, [False, False]
    granted: float | None = None
    while not all(ended[: len(runs)]) or len(runs) < 2:
        time.sleep(0.1)
        now = time.monotonic()
        if len(runs) < 2 and now - began >= SHARDS * 5 * PAUSE / WORKERS / 4:
            runs.append(submit({"name": "second", **job}, directory=folder))
            submitted.append(time.monotonic())
        statuses = [run.status() for run in runs]
        ended = [status["ended"] is not None for status in statuses] + [False] * (2 - len(runs))
        living = [status for status, over in zip(statuses, ended, strict=False) if not over]
        used += (now - before) * sum(task["state"] == "running" for status in living for task in status["tasks"])
        usable += (now - before) * min(SLOTS, WORKERS * len(living))
        if granted is None and len(runs) == 2 and any(task["container"] for task in statuses[1]["tasks"]):
            granted = now
        before = now
    for run in runs:
        assert run.status()["state"] == "succeeded", run.status()
        assert json.loads(
            subprocess.run(
                [environ["TM"], "audit", run.id, "--json"], capture_output=True, check=True, env=environ
            ).stdout
        )["ok"]
    return {"use": 100 * used / usable, "wait": (granted or before) - submitted[1], "end": before - began}


def notice(folder: Path) -> float:
    """Take an elastic job's container back for a job of a higher priority; return the seconds until its program has heard of it."""
    from trainmaster import submit
    from trainmaster.host.machine import cores

    (folder / "listen.py").write_text(LISTENER)
    role = {
        "command": [sys.executable, "listen.py"],
        "replicas": {"min": 1, "max": 2},
        "resources": {"cores": cores() / 2 - 0.001, "memory": "64MiB"},
    }
    low = submit({"name": "low", "roles": {"worker": role}}, directory=folder)
    wait_for(lambda: sum("ready" in line for line in low.logs()) == 2)
    high = submit(
        {"name": "high", "priority": 1, "roles": {"worker": {**role, "command": "true", "replicas": 1}}},
        directory=folder,
    )
    high.wait()
    (warned,) = [event["at"] for event in low.events() if event["type"] == "warned"]
    (heard,) = [float(line.split()[-1]) for line in low.logs() if "heard" in line]
    low.kill()
    low.wait(check=False)
    return heard - warned


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the programs do not run")
        time.sleep(0.1)


def measure(runs: int) -> list[Row]:
    import os

    gang, elastic, heard = list[dict[str, float]](), list[dict[str, float]](), list[float]()
    with place() as environ, tempfile.TemporaryDirectory() as temporary:
        os.environ.update(environ)
        folder = Path(temporary)
        (folder / "train.py").write_text(PROGRAM.replace("PAUSE", str(PAUSE)))
        (folder / "rows").mkdir()
        for number in range(SHARDS):
            (folder / "rows" / f"{number:03}.txt").write_text(
                "".join(f"{(number * 7 + row) % 1797}\n" for row in range(50))
            )
        tm = {**environ, "TM": str(Path(sys.executable).parent / "tm")}
        for _ in range(runs):
            gang.append(two_jobs(folder, tm, elastic=False))
            elastic.append(two_jobs(folder, tm, elastic=True))
            heard.append(notice(folder))

    def column(of: list[dict[str, float]], name: str) -> list[float]:
        return [one[name] for one in of]

    return [
        Row("use of the usable slots", column(elastic, "use"), "%", peer_name="gang", peer=column(gang, "use"), more_is_better=True),
        Row("the second job waits", column(elastic, "wait"), "s", limit=2.0, peer_name="gang", peer=column(gang, "wait")),
        Row("both have ended", column(elastic, "end"), "s", peer_name="gang", peer=column(gang, "end")),
        Row("preemption heard by the program", heard, "s", limit=0.2),
    ]  # fmt: skip


if __name__ == "__main__":
    main(measure, 3, __doc__ or "")
