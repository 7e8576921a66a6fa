"""Two jobs of 4 on 6 slots of a real Kubernetes, the second of a higher PriorityClass: elastic against gang, with a PyTorch model.

    python benchmarks/elastic_kubernetes.py [--runs 1]

The smallest of ElasticDL's settings on two nodes of three slots (an extended resource). A job learns the digits with PyTorch, from shards
that its workers share; after each batch a worker waits, as it would for an accelerator. The second job is submitted when all of the first's
workers have run for a quarter of its time. *elastic*: `replicas: {min: 2, max: 4}`; half of the first job's workers are of the high class,
and all of the second's. So the second job gets the two free slots and those of the first job's other half. *gang*: four workers or none,
all of one class. Pods have this machine's Python, so each worker's start includes `import torch` on the machine's cores.

use         tasks whose program runs, of the slots that the jobs there were could have used, from the first submit to the last end
held        the same of tasks that have a container: it leaves out how long a pod and PyTorch take to start
wait        from the second submit to the first of its pods that is placed on a node; to all four; to the first program that runs
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import figures

SLOT, NODES, WORKERS = "example.org/slot", 2, 4
SLOTS = 3 * NODES
SHARDS, PAUSE = (
    600,
    0.24,
)  # of a job; s that a worker waits after each of the 5 batches of a shard: three minutes with 4 workers
LIMIT = 1800.0  # s for a job
LOW, HIGH = "bench-low", "bench-high"
PROGRAM = """
import time
import torch
from trainmaster import runtime

torch.manual_seed(runtime.task().index)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
step, right = 0, []
for shard in runtime.shards("train").shards():
    table = torch.tensor([[float(number) for number in line.split(",")] for line in shard.records()])
    for batch in table.chunk(5):
        pixels, labels = batch[:, 1:] / 16, batch[:, 0].long()
        scores = model(pixels)
        right.append(float((scores.argmax(1) == labels).float().mean()))
        loss = torch.nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(PAUSE)
    step += 1
    runtime.progress(step=step)
print(f"{sum(right[-50:]) / 50:.4f} of the newest batches" if len(right) >= 50 else "little was left to read")
"""
Span = tuple[float, float]


@contextmanager
def place() -> Iterator[tuple[Any, Path]]:
    """A cluster of the benchmark's own, which `os.environ` leads to, and a directory that its pods see."""
    from trainmaster.clusters import kubernetes

    settings = kubernetes.Settings(nodes=NODES, resources={SLOT: SLOTS // NODES}, memory=8192)
    with figures.place() as environ, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cluster = kubernetes.up(
            settings, folder=Path(folder, "kubernetes"), say=lambda line: print(line, file=sys.stderr)
        )
        try:
            os.environ.update({**environ, **cluster.environ})
            for name, value in ((LOW, 10), (HIGH, 1000)):
                cluster.kubectl("create", "priorityclass", name, f"--value={value}")
            data = Path(folder, "job")
            _write_records(data / "rows")
            (data / "files").mkdir()
            (data / "files" / "train.py").write_text(PROGRAM.replace("PAUSE", str(PAUSE)))
            Path(folder).chmod(0o755)
            yield cluster, data
        finally:
            kubernetes.down(folder=cluster.folder)


def _write_records(folder: Path) -> None:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    lines = [",".join(map(str, [label, *map(int, row)])) + "\n" for label, row in zip(labels, pixels, strict=True)]
    folder.mkdir(parents=True)
    for number in range(SHARDS):
        (folder / f"{number:04}.csv").write_text("".join(lines[(number * 50 + row) % len(lines)] for row in range(50)))


def job(cluster: Any, data: Path, name: str, elastic: bool) -> dict[str, Any]:
    from trainmaster.clusters.kubernetes.images import DEBIAN

    paths = dict.fromkeys([sys.base_prefix, sys.prefix, str(data / "rows")])  # Python, its packages, the records
    classes: Any = {"class": HIGH, "fraction": 0.5, "other": LOW} if name == "first" else HIGH
    return {
        "name": name,
        "environment": {"image": DEBIAN},
        "files": ["."],
        "gang": not elastic,
        "roles": {
            "worker": {
                "command": [sys.executable, "train.py"],
                "replicas": {"min": 2, "max": WORKERS} if elastic else WORKERS,
                "resources": {"cores": 0.2, "memory": "1GiB", "extended": {SLOT: 1}},
                "env": {"OMP_NUM_THREADS": "1"},
                "stop": {"grace": "1s"},
            }
        },
        "inputs": {"train": {"url": f"file://{data / 'rows'}", "as": "shards"}},
        "master": {"resources": {"cores": 0.2, "memory": "512MiB"}},
        "engines": {
            "kubernetes": {
                "namespace": cluster.host_namespace,
                "run_as": 0,
                "volumes": [{"host_path": os.path.realpath(path), "path": path, "read_only": True} for path in paths],
                "priority_class": {"worker": classes if elastic else HIGH},
            }
        },
    }


def two_jobs(cluster: Any, data: Path, elastic: bool) -> dict[str, float]:
    """Run both jobs to their end."""
    from trainmaster import submit

    began = [time.time()]
    runs = [submit(job(cluster, data, "first", elastic), engine="kubernetes", directory=data / "files")]
    until(lambda: sum(task["state"] == "running" for task in runs[0].status()["tasks"]) == WORKERS)
    time.sleep(SHARDS * 5 * PAUSE / WORKERS / 4)
    began.append(time.time())
    runs.append(submit(job(cluster, data, "second", elastic), engine="kubernetes", directory=data / "files"))
    placed: list[float] = []

    def all_placed() -> bool:
        missing = _placed(cluster, runs[1].id) - len(placed)
        placed.extend([time.time()] * missing)
        return len(placed) == WORKERS

    until(all_placed)
    for run in runs:
        assert run.wait(LIMIT)["state"] == "succeeded"
    events = [list(run.events()) for run in runs]
    ended = [max(event["at"] for event in of if event["type"] == "ended") for of in events]
    usable = _overlap(list(zip(began, ended, strict=True)), WORKERS)
    programs, containers = ([span for of in events for span in spans(of, kind)] for kind in ("started", "granted"))
    taken = [event for event in events[0] if event["type"] == "attempt-written-off" and event["reason"] == "preempted"]
    charged = [event for event in events[0] if event["type"] == "incident" and event["costs"]]
    assert len(taken) == 2 * elastic, taken
    assert not charged, charged
    regrown = [event["task"] for event in events[0] if event["type"] == "started" and event["at"] > ended[1]]
    print(f"elastic={elastic}: preempted {[event['task'] for event in taken]}, started after the second's end: {regrown}; "
          f"{[line for run in runs for line in run.logs() if 'of the newest' in line]}", file=sys.stderr)  # fmt: skip
    return {
        "use": 100 * sum(end - begin for begin, end in programs) / usable,
        "held": 100 * sum(end - begin for begin, end in containers) / usable,
        "placed": placed[0] - began[1],
        "all placed": placed[-1] - began[1],
        "runs": min(event["at"] for event in events[1] if event["type"] == "started") - began[1],
        "end": max(ended) - began[0],
    }


def spans(events: Iterable[dict[str, Any]], kind: str) -> Iterator[Span]:
    """Yield when each program (`kind` started), or each container (granted), began and when it ended."""
    ends = {"container-ended", "released", "ended"}
    if kind == "started":
        ends |= {"exited", "died", "attempt-ended", "attempt-written-off"}
    began: dict[str, float] = {}
    for event in events:
        if event["type"] == kind:
            began[event["task"]] = event["at"]
        elif event["type"] in ends:
            named = [task for task, *_ in event["tasks"]] if event["type"] == "released" else [event.get("task")]
            for task in list(began) if event["type"] == "ended" else named:
                if task in began:
                    yield began.pop(task), event["at"]


def _overlap(jobs: list[Span], size: int) -> float:
    """Return the slot seconds that jobs of `size` tasks could have used."""
    edges = sorted({edge for span in jobs for edge in span})
    return sum(
        (end - begin) * min(SLOTS, size * sum(first <= begin and end <= last for first, last in jobs))
        for begin, end in pairwise(edges)
    )


def _placed(cluster: Any, job_id: str) -> int:
    labels = f"trainmaster/job%3D{job_id},trainmaster/part%3Dtask"
    answer = cluster.ask("GET", f"/api/v1/namespaces/{cluster.host_namespace}/pods?labelSelector={labels}")
    return sum(bool(pod["spec"].get("nodeName")) for pod in json.loads(answer.said)["items"])


def until(condition: Any) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the jobs do not get on")
        time.sleep(0.1)


def measure(runs: int) -> list[figures.Row]:
    elastic, gang = list[dict[str, float]](), list[dict[str, float]]()
    with place() as (cluster, data):
        for _ in range(runs):
            elastic.append(two_jobs(cluster, data, elastic=True))
            gang.append(two_jobs(cluster, data, elastic=False))

    def row(figure: str, name: str, unit: str = "s", **more: Any) -> figures.Row:
        ours, peer = ([told[name] for told in of] for of in (elastic, gang))
        return figures.Row(figure, ours, unit, peer_name="gang", peer=peer, **more)

    return [
        row("use of the usable slots: programs that run", "use", "%", more_is_better=True),
        row("slots that are held", "held", "%", more_is_better=True),
        row("the second job waits for its first place", "placed", limit=2.0),
        row("for all four", "all placed"),
        row("for its first program", "runs"),
        row("both have ended", "end"),
    ]


if __name__ == "__main__":
    figures.main(measure, 1, __doc__ or "")
