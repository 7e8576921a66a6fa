"""The figures of running jobs in Prometheus' text form (version 0.0.4).

Names and labels are bounded: jobs, tasks and devices are labels, what programs call their own metrics is not.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster.core.errors import TrainmasterError
from trainmaster.core.states import JOB_STATES, LEFT, TASK_STATES
from trainmaster.web.contract import LIVE, Jobs, Unknown

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
JOBS, TASKS = 200, 1000  # of which figures are shown: of all jobs, and of each job

# name -> kind and meaning
FAMILIES = {
    "job_info": ("gauge", "A job that runs; its name and framework."),
    "job_state": ("gauge", "1 for the state that the job is in."),
    "job_tasks": ("gauge", "Tasks by state."),
    "job_restarts_total": ("counter", "Restarts."),
    "job_events_total": ("counter", "Events in the job's log."),
    "task_restarts_total": ("counter", "Attempts of a task after its first."),
    "task_progress_ratio": ("gauge", "How far the program says that it is, from 0 to 1."),
    "task_steps_total": ("counter", "The step that the program has reached."),
    "task_cpu_cores": ("gauge", "Cores in use."),
    "task_memory_bytes": ("gauge", "Memory in use."),
    "task_gpu_utilization_ratio": ("gauge", "Use of a device, from 0 to 1."),
    "task_gpu_memory_bytes": ("gauge", "Memory of a device in use."),
}
_OF_TASKS = {
    "restarts": "task_restarts_total", "progress": "task_progress_ratio", "step": "task_steps_total", "cpu": "task_cpu_cores",
    "memory": "task_memory_bytes",
}  # fmt: skip

Sample = tuple[str, dict[str, Any], Any]  # family, labels, value


async def text(jobs: Jobs) -> bytes:
    """Return the figures of all running jobs."""
    rows: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for job in (await jobs.listing("", LIVE, "", "", JOBS))["jobs"]:
        try:
            facts, _ = await jobs.find(job["id"])
        except (Unknown, TrainmasterError):  # it went away meanwhile, or its log cannot be read: the others are shown
            continue
        for name, labels, value in samples(facts.shown_status()):
            if isinstance(value, int | float):
                rows[name].append(f"trainmaster_{name}{{{_labels(labels)}}} {float(value)!r}")
    parts = []
    for name, (kind, meaning) in FAMILIES.items():
        parts += [f"# HELP trainmaster_{name} {meaning}", f"# TYPE trainmaster_{name} {kind}", *rows[name]]
    return ("\n".join(parts) + "\n").encode("utf-8", "replace")


def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
    """Yield the figures of a job's status."""
    job, counts = {"job": status["job"]}, Counter(task["state"] for task in status["tasks"])
    yield "job_info", {**job, "name": status["name"], "framework": status["framework"]}, 1
    yield from (("job_state", {**job, "state": state}, int(status["state"] == state)) for state in JOB_STATES)
    yield from (("job_tasks", {**job, "state": state}, counts[state]) for state in TASK_STATES if state != LEFT)
    yield "job_restarts_total", job, status["restarts"]
    yield "job_events_total", job, status["events"]
    for task in status["tasks"][:TASKS]:
        labels = {**job, "task": task["task"]}
        for figure, name in _OF_TASKS.items():
            yield name, labels, task.get(figure)
        for gpu in task.get("gpus") or ():
            yield "task_gpu_utilization_ratio", {**labels, "gpu": gpu["index"]}, gpu["util"]
            yield "task_gpu_memory_bytes", {**labels, "gpu": gpu["index"]}, gpu["memory"]


def _labels(labels: Mapping[str, Any]) -> str:
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
