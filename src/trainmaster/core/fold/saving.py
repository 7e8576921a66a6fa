"""Apply events of saves, and name saves: outputs that are stored as they are while their programs run.

The events are part of `fold`. A save's name is the time, UTC, at which it was asked for; names sort by time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from trainmaster.core.machine.phases import RUNNING
from trainmaster.core.machine.state import State, Task

Data = Mapping[str, Any]
SAVES = "_saves"  # the folder of an output that holds its saves
BESIDE = "interResult_"  # saves with this prefix are in the output itself, where users of XLearning look for them
NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ(\.\d+)?|interResult_\d{4}(_\d\d){5}(\.\d+)?")
_STYLES = {"time": "%Y-%m-%dT%H-%M-%SZ", "interResult": f"{BESIDE}%Y_%m_%d_%H_%M_%S"}


def save_name(state: State, at: float, others: Collection[str] = ()) -> str:
    """Return the name of a save that is asked for at this time: of several within a second each has its own. `others`: more names."""
    second = name = datetime.fromtimestamp(at, UTC).strftime(_STYLES[state.known_job.saves.names])
    known = {save["save"] for save in state.saves}.union(others)
    number = 0
    while name in known:
        number += 1
        name = f"{second}.{number}"
    return name


def save_folder(name: str) -> str:
    """Return the path of a save in its output."""
    return name if name.startswith(BESIDE) else f"{SAVES}/{name}"


def is_save(name: str) -> bool:
    """Tell whether this name in an output is that of a save, or of the folder of saves."""
    return name == SAVES or (name.startswith(BESIDE) and NAME.fullmatch(name) is not None)


def has_time_to_save(state: State) -> bool:
    """Tell whether a program writes, and no save is under way: saves that storage has no time for would only pile up."""
    busy = any(save["left"] for save in state.saves) or save_to_prune(state)
    return not busy and any(task.commits and task.phase == RUNNING for task in state.tasks.values())


def save_put_off(state: State, data: Data, at: float) -> None:
    arm_save(state, at)


def save_requested(state: State, data: Data, at: float) -> None:
    arm_save(state, at)
    if data.get("by") == "schedule" and not has_time_to_save(state):
        return  # in logs of before saves were put off
    writing = [task for task in state.tasks.values() if task.commits and task.phase == RUNNING]
    waiting = {task.key: None for task in writing}
    state.saves.append({"save": data["save"], "at": at, "tasks": {}, "failed": {}, "left": waiting})
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


def save_to_prune(state: State) -> str | None:
    """Return the first complete save up to which old ones must still be removed: one after the other, since two prunings at once would
    collide.
    """
    newer = (save for save in state.saves[state.known_job.saves.keep :] if not save.get("pruned"))
    first = next(newer, None)
    return None if first is None or first["left"] else first["save"]


def saves_pruned(state: State, newest: str) -> None:
    """Forget the saves up to `newest` that were removed: the last `keep` are left. A failed save counts as none, but the newest is
    kept, for its failure has still to be shown.
    """
    older = [save for save in state.saves if save["save"] <= newest]
    kept = [save["save"] for save in older if save["tasks"]][-state.known_job.saves.keep :]
    state.saves = [
        save | {"pruned": save["save"] == newest}
        for save in state.saves
        if save["save"] in kept or save["save"] >= newest
    ]
