"""What events of saves change: outputs that are stored as they are while their programs run.

Part of `fold`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.core.state import RUNNING, State, Task

Data = Mapping[str, Any]


def save_requested(state: State, data: Data, at: float) -> None:
    arm_save(state, at)
    writing = [task for task in state.tasks.values() if task.commits and task.phase == RUNNING]
    if not writing and data.get("by") == "schedule":
        return  # nothing that could be saved: the next one is waited for
    left = {task.key: None for task in writing}
    state.saves.append({"save": data["save"], "at": at, "tasks": {}, "failed": {}, "left": left})
    for task in writing:
        state.touch(task)


def arm_save(state: State, at: float) -> None:
    every = state.known_job.saves.every
    if every is not None and state.known_job.outputs:
        state.arm("save", "", at + every)


def saved(state: State, task: Task, data: Data, at: float) -> None:
    for save in state.saves:
        if save["save"] == data["save"]:
            figures = {name: data[name] for name in ("files", "bytes", "gave_up") if name in data}
            save["failed" if "gave_up" in data else "tasks"][task.key] = figures
            save["left"].pop(task.key, None)


def saves_pruned(state: State, newest: str) -> None:
    """Only the newest saves are there; one that failed is none, but of the newest that is still to be told."""
    there = [save["save"] for save in state.saves if save["tasks"]][-state.known_job.saves.keep :]
    kept = [save for save in state.saves if save["save"] in (*there, newest)]
    state.saves = [save | {"pruned": save["save"] == newest} for save in kept]
