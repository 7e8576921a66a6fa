"""Apply events of how fast programs work, and of the sizes that elastic roles should have. The events are part of `fold`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.core.fold.moves import seek_spares
from trainmaster.core.machine.state import Scaling, State

Data = Mapping[str, Any]


def straggling(state: State, data: Data, at: float) -> None:
    figures = {name: data[name] for name in ("seconds", "median", "per")}
    state.stragglers[data["task"]] = {**figures, "at": at}


def straggling_over(state: State, data: Data, at: float) -> None:
    state.stragglers.pop(data["task"], None)


def throughput(state: State, data: Data, at: float) -> None:
    scaling, size = _scaling(state, data["role"]), str(data["size"])
    newest = max(scaling.rates, key=lambda known: scaling.rates[known][1], default="")
    if scaling.unit != data["unit"]:
        scaling.unit, scaling.rates, newest = data["unit"], {}, ""
    is_again = newest == size
    scaling.measured = scaling.measured + 1 if is_again else 1
    scaling.rates[size] = [
        (data["rate"] + scaling.rates[size][0]) / 2 if is_again else data["rate"],
        at,
    ]  # evens out what varies


def scale_advised(state: State, data: Data, at: float) -> None:
    advice = {name: data[name] for name in ("size", "members", "figures")}
    _scaling(state, data["role"]).advice = advice if data["size"] != data["members"] else None


def scale_requested(state: State, data: Data, at: float) -> None:
    """Note a wanted size. One with figures follows from the job's own rules (`decide.autoscaling`), another is a user's, who asks by None
    for the rules again.
    """
    role, size, is_own = data["role"], data["size"], "figures" in data
    group = state.groups[state.tasks[f"{role}:0"].group]
    replicas = state.known_job.roles[role].replicas
    present = group.sizes[role] if group.sizes is not None else replicas.least
    scaling = _scaling(state, role)
    scaling.by_user, scaling.advice = size is not None and not is_own, None
    if is_own:
        scaling.given_back += size < present
    if size is not None:
        group.requested[role] = size
    elif replicas.start or state.known_job.scale.auto == "on":
        group.requested[role] = replicas.start or present
    else:
        group.requested.pop(role, None)
    if group.sizes is not None:
        seek_spares(state, group)


def _scaling(state: State, role: str) -> Scaling:
    return state.scaling.setdefault(role, Scaling())
