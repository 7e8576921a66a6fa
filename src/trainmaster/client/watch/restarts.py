"""What is said of failures while a job is watched: who failed by what, who starts again, and from where.

A restart is decided by the first word of a failure, and its cause is settled some seconds later: where another one proves to be the cause
(the peer that was killed, not the one whose connection broke), that is said then. A task's end for good is said where the job goes on
without it, so only with the next event: where the job ends by it, its last words say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.core.machine.reasons import words
from trainmaster.core.machine.units import GROUP, unit_from
from trainmaster.core.spec.quantities import format_seconds


class Restarts:
    """Takes events, gives lines."""

    def __init__(self) -> None:
        self._causes: dict[str, str] = {}  # unit -> who failed by what, as it was told
        self._last: Mapping[str, Any] = {}  # task -> failed for good, until it is known whether the job goes on

    def take(self, event: Mapping[str, Any], tasks: int) -> list[str]:
        """The lines that `event` gives. `tasks`: how many the job has."""
        failed, self._last = self._last, {}
        lines = [f"{who(failed)}, for good"] if failed and event["type"] != "ending" else []
        kind = event["type"]
        if kind == "incident" and event["again"]:
            self._causes[event["unit"]] = who(event["cause"])
            lines.append(told(event, tasks))
        elif kind == "settled" and (first := self._causes.pop(event["unit"], "")):
            cause = who(event["cause"])
            lines += [f"the cause of it: {cause}"] if cause != first else []
        elif kind == "rewound":
            begin = f"from checkpoint set {event['set']}" if event.get("set") else "anew: no checkpoint set is whole"
            lines.append(f"they begin {begin}")
        elif kind == "task-failed":
            self._last = event
        return lines


def told(event: Mapping[str, Any], tasks: int = 2) -> str:
    """An incident in words. `tasks`: how many the job has."""
    if not event["again"]:
        return f"{who(event['cause'])}; no restart is left"
    which = "all start again" if tasks > 1 and unit_from(event["unit"]).kind == GROUP else "it starts again"
    late = event.get("until", 0.0) - event["at"]
    after = f" in {format_seconds(round(late))}" if late >= 1 else ""
    count = f"restart {event['spent']} of {event['limit']}" if event["costs"] else "not charged"
    return f"{who(event['cause'])}; {which}{after} ({count})"


def who(cause: Mapping[str, Any]) -> str:
    """`worker:1 was killed by SIGKILL`."""
    task = cause["task"]
    figures = {**(cause.get("figures") or {}), "task": task, "role": task.partition(":")[0]}
    return f"{task} {words(cause['reason'], figures)}"
