"""Put failures into words while a job is watched: who failed by what, who starts again, and from where.

A restart is decided at the first report of a failure, and its cause is settled some seconds later: where another failure proves to be the
cause (the peer that was killed, not the one whose connection broke), a line says so then. A task that ended for good is reported with the
next event, and only where the job goes on without the task: where that end is the job's, the job's last words report it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.core.machine.failure_words import failure_text, incident_text


class Restarts:
    """Takes events, gives lines."""

    def __init__(self) -> None:
        self._causes: dict[str, str] = {}  # unit -> who failed by what, as a line said it
        self._last: Mapping[str, Any] = {}  # a task-failed event, until it is known whether the job goes on

    def take(self, event: Mapping[str, Any], tasks: int) -> list[str]:
        """Return the lines that `event` gives. `tasks`: how many the job has."""
        failed, self._last = self._last, {}
        lines = [f"{failure_text(failed)}, for good"] if failed and event["type"] != "ending" else []
        kind = event["type"]
        if kind == "incident" and event["again"]:
            self._causes[event["unit"]] = failure_text(event["cause"])
            lines.append(incident_text(event, tasks))
        elif kind == "settled" and (first := self._causes.pop(event["unit"], "")):
            cause = failure_text(event["cause"])
            lines += [f"the cause of it: {cause}"] if cause != first else []
        elif kind == "rewound":
            begin = f"from checkpoint set {event['set']}" if event.get("set") else "anew: no checkpoint set is whole"
            lines.append(f"they begin {begin}")
        elif kind == "task-failed":
            self._last = event
        return lines
