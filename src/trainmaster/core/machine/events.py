"""The events of a job: one log, appended and never changed.

Two classes. A *barrier* is on stable storage before its effect: nobody acts on it earlier. A *note* is there within a second; what was
lost of notes with a dead master, its successor rebuilds from what engine and agents tell it. `EVENTS` is the table that the master, the
readers and the documents share. An event is a number, a time, the epoch of the master that wrote it, a type and plain data; readers keep
fields they do not know, show types they do not know as such, and refuse only a higher major version.

Events of one decision count together or not at all, though a master may die while it writes them: each but the last carries `rest`, how
many follow. A decision that was not told to its end before the next `master-started` was never taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.plain import Plain

VERSION = "1.0"
_MAJOR = VERSION.split(".")[0]

Fact = tuple[str, dict[str, Any]]  # an event before it has a number and a time


class Recorded(Protocol):
    """What readers need of an event."""

    @property
    def n(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def data(self) -> Mapping[str, Any]: ...


Told = TypeVar("Told", bound=Recorded)


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
    """What is true of all events of a type."""

    barrier: bool
    text: str


def _barrier(text: str) -> Kind:
    return Kind(True, text)


def _note(text: str) -> Kind:
    return Kind(False, text)


EVENTS: dict[str, Kind] = {
    "submitted": _barrier("the job was submitted"),
    "master-started": _barrier("master {epoch} took over"),
    "inputs-listed": _barrier("the inputs were listed, and the checkpoint set to begin from was named"),
    "asked": _note("containers were asked for: {tasks}"),
    "waiting": _note("{wanted}"),
    "granted": _note("{task} was granted {container} on {node}"),
    "stray": _note("a container that {task} wants no more was granted"),
    "refused": _note("the engine refused {task}: {detail}"),
    "grants-returned": _note("what was granted was given back after {seconds}"),
    "sized": _barrier("the gang begins with {sizes}"),
    "agent-connected": _note("the agent of {task} is there"),
    "agent-disconnected": _note("the agent of {task} is out of reach"),
    "ordered": _note("{verb} was sent to {tasks}"),
    "staging": _note("{task} stages its data"),
    "ready": _note("{task} is ready at {address}"),
    "generation-formed": _barrier("generation {generation} was formed"),
    "member-joined": _barrier("{task} joined generation {generation}"),
    "started": _note("the program of {task} started"),
    "progressed": _note("{task} made progress: {reached}"),
    "exited": _note("the program of {task} ended well"),
    "died": _note("the program of {task} failed; what it left of its checkpoint is still stored"),
    "uploaded": _note("{task} uploaded its outputs: {made}"),
    "committers-named": _barrier("named to commit their outputs: {tasks}"),
    "output-committed": _barrier("{task} committed its outputs: {made}"),
    "attempt-ended": _note("attempt {attempt} of {task} ended"),
    "attempt-written-off": _barrier("attempt {attempt} of {task} was written off"),
    "container-ended": _note("the container of {task} ended"),
    "incident": _barrier("a failure was taken up: {follows}"),
    "settled": _barrier("the cause of a failure was settled: {cause}"),
    "backoff-over": _note("the wait before a restart is over"),
    "task-failed": _barrier("{task} failed for good"),
    "warned": _note("{task} will be taken back in {seconds} s"),
    "shards-done": _barrier("{shards} of {input} done by {task}"),
    "shards-returned": _barrier("{shards} of {input} returned"),
    "checkpoint-saved": _barrier("checkpoint set {set} is whole"),
    "rewound": _barrier("the group goes back to {back}"),
    "save-requested": _barrier("a save was asked for"),
    "saved": _note("{task} saved its outputs: {made}"),
    "trouble": _note("{task} goes on, but {what}: {detail}"),
    "kill-requested": _barrier("{by} asked to kill the job"),
    "job-timed-out": _note("the job ran out of time"),
    "ending": _barrier("the job is ending"),
    "commits-abandoned": _note("no commit is waited for, since none could be recorded"),
    "left": _note("the agent of {task} stored its logs and left"),
    "ended": _barrier("the job ended"),
    "released": _note("containers were given back: {tasks}"),
    "step-done": _note("step done: {step}"),
}


def whole(events: Iterable[Told]) -> Iterator[Told]:
    """The events that count: without those of a decision that its writer died in the middle of."""
    held: list[Told] = []
    for event in events:
        if event.type == "master-started":
            held.clear()
        if "rest" in event.data:
            held.append(event)
            continue
        yield from held
        held.clear()
        yield event


def encode(event: Event) -> bytes:
    """The event as one line of the log, newline included."""
    record = {"v": VERSION, "n": event.n, "at": event.at, "epoch": event.epoch, "type": event.type, **event.data}
    try:
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    # Half a surrogate pair, out of some program's JSON: as an escape it comes back as it was.
    except UnicodeEncodeError:
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"


_decoder = json.JSONDecoder().raw_decode


def decode(line: bytes | str) -> Event:
    """The event of one line. Raises ValueError on what is no event, BadInput where its major version is not ours."""
    text = line.decode() if isinstance(line, bytes) else line
    record, _ = _decoder(text)
    try:
        version, n, at = record.pop("v"), record.pop("n"), record.pop("at")
        event = Event(n, at, record.pop("epoch"), record.pop("type"), record)
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"not an event: {text[:80]!r}") from error
    if version != VERSION and str(version).split(".")[0] != _MAJOR:
        raise BadInput(
            f"this event log is of version {version}, and this Trainmaster reads {_MAJOR}.x",
            place=f"event {n}",
            mend="read it with a newer Trainmaster",
            anchor="log-version",
        )
    return event
