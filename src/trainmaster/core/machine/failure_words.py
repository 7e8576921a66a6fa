"""Put failures into words: who failed by what, and who starts again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.core.machine.reasons import sentence, words
from trainmaster.core.machine.units import GROUP, unit_from
from trainmaster.core.spec.quantities import format_seconds

_TRACEBACK = "Traceback (most recent call last):"
_ERROR = re.compile(r"[\w.]*(?:Error|Exception)\b(?::|$)|(?i:fatal|error|panic)\b: ")
_FATAL = re.compile(r"(?i:fatal|panic)\b: ")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_LONGEST = 300  # characters of an error


def error_line(reason: str, tail: Sequence[str]) -> str:
    """Return the line among the last ones of a program that says why it exited: of a traceback the exception; "" if no line does.

    It is "" for other reasons too: an exception that was handled before has no part in a kill.
    """
    if reason != "exit":
        return ""
    lines = [_COLOUR.sub("", line) for line in tail]
    fatal = next((number for number in reversed(range(len(lines))) if _FATAL.match(lines[number].strip())), -1)
    for begin in reversed([number for number, line in enumerate(lines) if number > fatal and _TRACEBACK in line]):
        prefix = lines[begin].partition(_TRACEBACK)[0].replace("+ Exception Group ", "| ")  # as of a rank
        for line in lines[begin + 1 :]:
            text = line.removeprefix(prefix)
            if text.strip() and not text[0].isspace():
                return text.strip()[:_LONGEST]
    return next((line.strip()[:_LONGEST] for line in reversed(lines) if _ERROR.match(line.strip())), "")


def incident_text(event: Mapping[str, Any], tasks: int = 2) -> str:
    """Return an incident in words. `tasks`: how many the job has."""
    if not event["again"]:
        return f"{failure_text(event['cause'])}; no restart is left"
    which = "all start again" if tasks > 1 and unit_from(event["unit"]).kind == GROUP else "it starts again"
    late = event.get("until", 0.0) - event["at"]
    after = f" in {format_seconds(round(late))}" if late >= 1 else ""
    count = f"restart {event['spent']} of {event['limit']}" if event["costs"] else "not charged"
    return f"{failure_text(event['cause'])}; {which}{after} ({count})"


def failure_text(cause: Mapping[str, Any]) -> str:
    """Return a failure in words: `worker:1 was killed by SIGKILL`."""
    task = cause["task"]
    figures = {**(cause.get("figures") or {}), "task": task, "role": task.partition(":")[0]}
    return sentence(task, words(cause["reason"], figures))
