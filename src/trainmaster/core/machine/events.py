"""The events of a job: one log, appended and never changed.

Events have two classes. A *barrier* is on stable storage before its effect: nobody acts on it earlier. A *note* is stored within a second.
Notes may be lost with a dead master; its successor rebuilds them from the reports of engine and agents. `EVENTS` is the table that the
master, the readers and the documents share.
An event is a number, a time, the epoch of the master that wrote it, a type and plain data; readers keep
fields they do not know, show types they do not know as such, and refuse only a higher major version.

Events of one decision count together or not at all, though a master may die while it writes them: each but the last carries `rest`, the
number of those that follow. A decision that is incomplete before the next `master-started` was never taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.machine.fields import wrong_fields
from trainmaster.core.plain import Plain

VERSION = "1.1"
_MAJOR = VERSION.split(".")[0]

Fact = tuple[str, dict[str, Any]]  # an event before it has a number and a time


class Recorded(Protocol):
    """The attributes that readers need of an event."""

    @property
    def n(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def data(self) -> Mapping[str, Any]: ...


RecordedEvent = TypeVar("RecordedEvent", bound=Recorded)


@attrs.frozen(slots=True, eq=False, repr=False)
class Event(Plain):
    """One fact. `n` rises by one over all epochs, `at` is in seconds since 1970 (never falling), `epoch` is the master's."""

    n: int
    at: float
    epoch: int
    type: str
    data: Mapping[str, Any]


@attrs.frozen(slots=True, eq=False, repr=False)
class Kind(Plain):
    """The properties of all events of a type."""

    barrier: bool
    text: str
    fields: Mapping[str, str]  # name -> shape


def _barrier(text: str, **fields: str) -> Kind:
    return Kind(True, text, fields)


def _note(text: str, **fields: str) -> Kind:
    return Kind(False, text, fields)


def _report(barrier: bool, text: str, **fields: str) -> Kind:
    """Return the kind of an event that records a numbered report of an agent.

    `report`: its number; absent where the master acted in the agent's place.
    """
    return Kind(barrier, text, {"task": "text", "attempt": "whole", "report": "whole?", **fields})


EVENTS: dict[str, Kind] = {
    "submitted": _barrier("the job was submitted", id="text", job="map", since="time?", user="text?", engine="text?"),
    "master-started": _barrier(
        "master {epoch} started", read="map", place="text", takeovers="whole?", lease="seconds?", boot="map?",
    ),
    "inputs-listed": _barrier(
        "the inputs were listed, and the checkpoint set to begin from was named", listings="map", checkpoint="map?",
    ),
    "input-counted": _report(True, "{task} counted the input {input}", input="text", listing="map"),
    "asked": _note("containers were asked for: {tasks}", tasks="list"),
    "waiting": _note("{wanted}", resource="text", asked="text", free="text", detail="text", position="whole"),
    "granted": _note(
        "{task} was granted {container} on {node}", task="text", serial="whole", container="text", node="text", devices="list",
    ),
    "stray": _note("a container that {task} wants no more was granted", task="text", serial="whole", container="text"),
    "refused": _note("the engine refused {task}: {detail}", task="text", serial="whole", detail="text"),
    "grants-returned": _note("what was granted was given back after {seconds}", group="whole", seconds="seconds or none", until="time"),
    "sized": _barrier("the gang begins with {sizes}", group="whole", sizes="map", elastic="list?"),
    "change-planned": _note("the group may change its members{when}", group="whole", due="time or none"),
    "resized": _barrier(
        "the group goes on with {sizes}", group="whole", sizes="map", joined="list", left="list", restarts="flag",
    ),
    "scale-requested": _barrier("{by} {wish}", role="text", size="whole or none", by="text", figures="map?"),
    "scale-advised": _note("{advice}", role="text", size="whole", members="whole", figures="map"),
    "throughput": _note("{size} x {role} made {speed}", role="text", size="whole", rate="number", unit="text"),
    "straggling": _note("{task} is much slower than its peers: {pace}", task="text", seconds="number", median="number", per="text"),
    "straggling-over": _note("{task} is as fast as its peers again: {pace}", task="text", seconds="number", median="number", per="text"),
    "agent-connected": _note(
        "the agent of {task} is there", task="text", serial="whole", node="text", address="text", container="text",
    ),
    "agent-disconnected": _note("the agent of {task} is out of reach", task="text", serial="whole", lease="seconds?"),
    "warmed-up": _report(False, "the program of {task} can begin", why="text"),
    "ordered": _note("{verb} was sent to {tasks}", verb="text", tasks="list", limit="seconds?"),
    "staging": _report(False, "{task} stages its data", done="number", total="number"),
    "ready": _report(
        False, "{task} is ready at {address}{way}", address="text", network="map?", ports="map?", devices="whole?",
        restored="map?", elapsed="seconds?",
    ),
    "generation-formed": _barrier("generation {generation} was formed", group="whole", generation="whole", members="list", ranks="map"),
    "member-joined": _barrier(
        "{task} joined generation {generation}", task="text", attempt="whole", group="whole", generation="whole", rank="whole",
    ),
    "started": _report(False, "the program of {task} started", pid="whole", elapsed="seconds or none"),
    "progressed": _report(False, "{task} made progress: {reached}", value="number or none", step="number or none"),
    "exited": _report(False, "the program of {task} ended well", elapsed="seconds or none"),
    "died": _report(
        False, "the program of {task} failed; its attempt lasts until the rest is done", reason="text", figures="map",
        elapsed="seconds or none", reached="map?",
    ),
    "part-committed": _report(
        True, "{task} committed part {part} of its outputs: {made}", part="whole", outputs="map", kept="map",
    ),
    "uploaded": _report(False, "{task} uploaded its outputs: {made}", outputs="map"),
    "committers-named": _barrier("named to commit their outputs: {tasks}", group="whole", attempts="list"),
    "output-committed": _report(True, "{task} committed its outputs: {made}", outputs="map"),
    "attempt-ended": _report(
        False, "attempt {attempt} of {task} ended", reason="text", figures="map", elapsed="seconds or none?", stopped="flag?", tail="list?",
        reached="map?",
    ),
    "attempt-written-off": _barrier(
        "attempt {attempt} of {task} was written off", task="text", attempt="whole", serial="whole", reason="text", figures="map",
        gone="flag", stopped="flag?",
    ),
    "container-ended": _note(
        "the container of {task} ended", task="text", serial="whole", gone="flag", reason="text?", figures="map?", attempt="whole?",
        again="time?",
    ),
    "incident": _barrier(
        "a failure was taken up: {follows}", unit="text", budget="text", cause="map", costs="flag", spent="whole", free="whole",
        quick="whole?", total="whole?", limit="whole", again="flag", until="time", generation="whole", memory_factor="number?",
        settle="seconds?", soon="seconds?",
    ),
    "settled": _barrier(
        "the cause of a failure was settled: {cause}", unit="text", budget="text", cause="map", costs="flag", spent="whole", free="whole",
        quick="whole?", total="whole?",
    ),
    "backoff-over": _note("the wait before a restart is over", unit="text"),
    "task-failed": _barrier("{task} failed for good", task="text", attempt="whole?", reason="text", figures="map", final="text?"),
    "warned": _note("{task} will be taken back in {seconds} s", task="text", seconds="seconds", reason="text", figures="map?"),
    "shards-done": _report(
        True, "{shards} of {input} done by {task}", input="text", ranges="list", records="list or none", mark="whole", differing="list?",
        kept_by="text?", states="list?",
    ),
    "shards-returned": _barrier(
        "{shards} of {input} returned{lost}", input="text", ranges="list", set="whole or none", mark="whole",
        task="text?", attempt="whole?", kept_by="text?", training="text?", step="whole?",
    ),
    "state-begun": _report(
        True, "round {round} of the training {training} begins with the state of {task}, step {step}{anew}",
        training="text", round="whole", step="whole", lost="flag", set="whole or none",
    ),
    "shards-begun": _report(False, "the program of {task} was in the middle of shards when it ended", begun="list"),
    "shard-failed": _note(
        "{task} failed while it read {shard} of {input}, attempt {failures} of {limit} that may", input="text", number="whole",
        path="text", kind="text", start="whole", end="whole", task="text", attempt="whole", failures="whole", limit="whole",
    ),
    "shard-set-aside": _barrier(
        "{shard} of {input} was set aside, since {failed_on} failed on it", input="text", number="whole", path="text", kind="text",
        start="whole", end="whole", ranges="list", failed="list",
    ),
    "feed-read": _report(
        True, "{task} read {rows} rows of the feed {feed}", feed="text", fed="list", read="list", rows="whole", left="whole?",
    ),
    "feed-ended": _barrier("the feed {feed} of {role} ended{end}", role="text", feed="text", rows="whole or none"),
    "checkpoint-saved": _report(
        True, "checkpoint set {set} is whole", set="whole", files="whole?", bytes="whole?", marks="map?", manifest="text?", refunds="flag?",
    ),
    "rewound": _barrier("the group goes back to {back}", group="whole", set="whole or none", without="map?"),
    "save-put-off": _note("no save was begun when one was due: no program writes, or the last save still goes on"),
    "save-requested": _barrier("a save was asked for by {by}", save="text", by="text"),
    "saved": _report(False, "{task} saved its outputs: {made}", save="text", files="whole", bytes="whole", gave_up="text?"),
    "trouble": _report(False, "{task} goes on, but {what}: {detail}", what="text", detail="text", bytes="whole?", save="text?"),
    "user-acted": _barrier(
        "{by} {deed}", by="text", action="text", task="text", attempt="whole", detail="text",
    ),
    "kill-requested": _barrier("{by} asked to kill the job", by="text", why="text", reason="text?"),
    "job-timed-out": _note("the job ran out of time", seconds="seconds or none"),
    "ending": _barrier(
        "the job is ending", state="text", reason="text", figures="map", task="text?", attempt="whole?", report="whole?", tail="list?",
        words="text?",
    ),
    "commits-abandoned": _note("no commit is waited for, since none could be recorded"),
    "left": _report(False, "the agent of {task} stored its logs and left", gave_up="text"),
    "ended": _barrier("the job ended", state="text", reason="text", figures="map", gave_up="text"),
    "released": _note("containers were given back: {tasks}", tasks="list"),
    "step-done": _note("step done: {step}", step="text", gave_up="text", limit="seconds?"),
}  # fmt: skip

DEEDS = {  # action of `user-acted` -> its words
    "signal": "sent {detail} to the program of {task}",
    "dump": "had the stacks of {task} written to its log",
    "cut": "cut the link to the agent of {task} for {detail}",
}


def faults(event: Recorded) -> list[str]:
    """Return the mistakes in the fields of one of our events: missing, of another shape, or unknown to its type."""
    fields = EVENTS[event.type].fields
    unknown = [f"{name} is unknown" for name in event.data if name not in fields and name != "rest"]
    return [f"{event.type}: {text}" for text in (*unknown, *wrong_fields(fields, event.data))]


def wrong_shape(event: Recorded) -> str:
    """Return the first field that an event lacks or has in another shape, in words; "" where there is none, or its type is unknown."""
    kind = EVENTS.get(event.type)
    wrong = wrong_fields(kind.fields, event.data) if kind is not None else []
    return f"{event.type}: {wrong[0]}" if wrong else ""


def whole(events: Iterable[RecordedEvent]) -> Iterator[RecordedEvent]:
    """Yield the events that count: all but those of a decision that a dying master left incomplete."""
    unfinished: list[RecordedEvent] = []
    for event in events:
        if event.type == "master-started":
            unfinished.clear()
        if "rest" in event.data:
            unfinished.append(event)
            continue
        yield from unfinished
        unfinished.clear()
        yield event


def encode(event: Event) -> bytes:
    """Return the event as one line of the log, newline included."""
    record = {"v": VERSION, "n": event.n, "at": event.at, "epoch": event.epoch, "type": event.type, **event.data}
    try:
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    # The text has half a surrogate pair, out of some program's JSON: an escape preserves it.
    except UnicodeEncodeError:
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"


END_OF_TIME = 1e11  # s since 1970; calendars of platforms end somewhere after it
_decoder = json.JSONDecoder().raw_decode


def decode(line: bytes | str) -> Event:
    """Read the event of one line. Raises ValueError where the line is not an event, BadInput where its major version is not ours."""
    text = line.decode() if isinstance(line, bytes) else line
    try:
        record, _ = _decoder(text)
        version, n, at = record.pop("v"), record.pop("n"), record.pop("at")
        event = Event(n, at, record.pop("epoch"), record.pop("type"), record)
        if type(n) is not int or type(event.type) is not str or type(event.epoch) is not int:
            raise TypeError
        if not 0 <= at < END_OF_TIME:  # or not a number
            raise TypeError
    except (KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"not an event: {text[:80]!r}") from error
    if version != VERSION and str(version).split(".")[0] != _MAJOR:
        raise BadInput(
            f"this event log is of version {version}, and this Trainmaster reads {_MAJOR}.x",
            place=f"event {n}",
            mend="read it with a newer Trainmaster",
            anchor="log-version",
        )
    return event
