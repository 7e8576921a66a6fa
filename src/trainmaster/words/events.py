"""Events in words, a line each, as `tm events` shows them.

The words are those of the table `core.machine.events.EVENTS`; a name in braces there is a field of the event, or one of `_DERIVED`, which
says several fields in words.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from trainmaster.core.input.shards import failed_words, place_words
from trainmaster.core.machine.events import DEEDS, EVENTS
from trainmaster.core.machine.failure_words import failure_text, incident_text
from trainmaster.core.machine.pace_words import advice_words, pace_words, scale_words, speed_words
from trainmaster.core.machine.reasons import words
from trainmaster.core.spec.quantities import format_bytes, format_count
from trainmaster.words.text import names, progress

Data = Mapping[str, Any]


def event_line(event: Data, utc: bool = False) -> str:
    """Return one event in words, led by its time, number and type."""
    return f"{clock(event['at'], utc)}  {event['n']:>5}  {event['type']:<20}  {event_text(event)}"


def event_text(event: Data) -> str:
    """Return one event in words; one of a type that this version does not know, or with wrong fields, is shown with its data."""
    kind = EVENTS.get(event["type"])
    data = {name: value for name, value in event.items() if name not in ("v", "n", "at", "epoch", "type")}
    if kind is None:
        return str(data)
    try:
        return f"{kind.text.format_map(cast('Mapping[str, Any]', _Fields(event)))}{_why(data)}"
    except (TypeError, ValueError, LookupError, AttributeError):  # fields of other shapes than ours
        return str(data)


def clock(at: float, utc: bool = False) -> str:
    """Return a time by this machine's zone, or in UTC, with milliseconds: it is read years later, and beside another machine's log."""
    parts = time.gmtime(at) if utc else time.localtime(at)
    zone = "Z" if utc else time.strftime(" %z", parts)
    return time.strftime("%Y-%m-%d %H:%M:%S", parts) + f".{int(at % 1 * 1000):03d}{zone}"


class _Fields:
    def __init__(self, event: Data) -> None:
        self._event = event

    def __getitem__(self, key: str) -> str:
        if key in _DERIVED:
            return _DERIVED[key](self._event)
        value = self._event.get(key)
        return "?" if value is None else str(value)


def _tasks(event: Data) -> str:
    return names([entry[0] for entry in event.get("tasks") or event.get("attempts") or ()])


def _output_size(event: Data) -> str:
    outputs = event["outputs"].values() if "outputs" in event else [event]
    files, size = (sum(int(output.get(figure) or 0) for output in outputs) for figure in ("files", "bytes"))
    empty = [name for name, output in (event.get("outputs") or {}).items() if "files" in output and not output["files"]]
    none = f"; nothing in {names(empty)}" if empty else ""
    return str(event.get("gave_up") or f"{format_count(files, 'file')}, {format_bytes(size)}{none}")


def _shards(event: Data) -> str:
    return format_count(sum(end - begin for begin, end in event.get("ranges") or ()), "shard")


def _reached(event: Data) -> str:
    return progress({"progress": event.get("value"), "step": event.get("step")}).replace(
        "-", "for the first time since a restart"
    )


def _awaited_resource(event: Data) -> str:
    if not event.get("resource"):
        return "nothing is waited for any more"
    free = f", free {event['free']}" if event.get("free") else ""
    return f"waiting for {event['resource']}: asked {event.get('asked', '?')}{free}"


def _way(event: Data) -> str:
    way = event.get("network") or {}
    device = f" by {way['device']}" if way.get("device") else ""
    return f" on {way['interface']}, transport {way['transport']}{device}" if way else ""


def _wish(event: Data) -> str:
    if event.get("size") is None:
        return f"left the number of {event['role']} to the job's own rules"
    figures = event.get("figures")
    grounds = f": {scale_words(figures, event['size'])}" if figures else ""
    return f"asked for {event['size']} x {event['role']}{grounds}"


_DERIVED: dict[str, Callable[[Data], str]] = {
    "tasks": _tasks,
    "made": _output_size,
    "wanted": _awaited_resource,
    "shards": _shards,
    "shard": place_words,
    "failed_on": lambda event: failed_words(event["failed"]),
    "reached": _reached,
    "follows": incident_text,
    "cause": lambda event: failure_text(event["cause"]),
    "lost": lambda event: (
        f": {event['task']} had not committed what attempt {event['attempt']} made of them"
        if "task" in event
        else ": they are not in the state with which the training goes on"
        if "training" in event
        else ""
    ),
    "anew": lambda event: ": that of the round before is lost" if event["lost"] else "",
    "back": lambda event: f"checkpoint set {event['set']}" if event.get("set") else "its beginning",
    "when": lambda event: f" from {clock(event['due'])} on" if event.get("due") else " once that is worth its cost",
    "pace": pace_words,
    "speed": lambda event: speed_words(event["rate"], event["unit"]),
    "wish": _wish,
    "way": _way,
    "end": lambda event: "" if event["rows"] is None else f": each of its tasks reads {event['rows']:,} rows",
    "deed": lambda event: DEEDS[event["action"]].format_map(event),
    "advice": lambda event: advice_words(event["role"], event["members"], event),
    "sizes": lambda event: ", ".join(f"{size} x {role}" for role, size in event["sizes"].items()),
}


def _why(data: Data) -> str:
    """Return what an event adds to its words: the reason that it carries, or what was said."""
    if "reason" in data:
        figures = {**(data.get("figures") or {}), "task": data.get("task", "")}
        return f": {words(str(data['reason']), figures)}"
    detail = (
        data.get("why") or data.get("state") or ("outputs" not in data and "files" not in data and data.get("gave_up"))
    )
    return f": {detail}" if detail else ""
