"""The course of a job: its attempts, generations, masters and marks, as its events tell them.

`State` has what is now; a `Timeline` has what was: who ran where and when. It is a fold of its own, made only where somebody looks at it.
Times are in seconds since 1970, by the log's clock.

It is a picture for readers, and decides nothing. So it takes any log. From an event of an unknown type, or with wrong fields, it takes what
it can and never raises; where a storage dropped events, it has a hole. It is bounded, whatever the job does: of the attempts that ended the
oldest are forgotten, and of a kind of marks that has grown too many every second one is left out. `forgotten` and `counts` say how many
there were.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from trainmaster.core.input.shards import failed_words, place_words
from trainmaster.core.machine.events import DEEDS, Event
from trainmaster.core.machine.failure_words import failure_text, incident_text
from trainmaster.core.machine.pace_words import pace_words, scale_words
from trainmaster.core.machine.reasons import REASONS, sentence, words
from trainmaster.core.spec.quantities import format_bytes, format_count, format_seconds
from trainmaster.core.states import FAILED, KILLED, PENDING, RUNNING, STAGING, SUCCEEDED

ATTEMPTS = 20_000  # kept, where the job has not half as many tasks
MEMBERS = 200_000  # of all generations that are kept, together
EPOCHS = 1_000
MARKS = 400  # of one kind
TEXT = 500  # characters of a mark

Data = Mapping[str, Any]


@attrs.define(slots=True)
class Attempt:
    """One try of a task. A time is None until it has come."""

    task: str
    attempt: int
    generation: int = 0  # 0: none yet
    rank: int | None = None
    node: str = ""
    container: str = ""
    devices: list[Any] = attrs.field(factory=list)
    began: float | None = None  # its first event
    granted: float | None = None  # its container, where the attempt before did not leave it one
    staging: float | None = None  # its agent got the order to prepare
    ready: float | None = None
    started: float | None = None  # the program
    exited: float | None = None  # the program ended well; outputs are stored and committed
    uploaded: float | None = None
    ended: float | None = None
    state: str = PENDING  # of TASK_STATES
    reason: str = ""
    figures: dict[str, Any] = attrs.field(factory=dict)

    @property
    def words(self) -> str:
        """Return how it ended in words, "" while it has not."""
        if self.reason == "exit" and self.started is None:  # another task's program exited
            return "had not started"
        return words(self.reason, {**self.figures, "task": self.task}) if self.reason else ""


@attrs.frozen(slots=True)
class Mark:
    """A moment that readers look for. `kind`: restart, preemption, save, checkpoint, resize, master, user, trouble or end."""

    at: float
    kind: str
    text: str
    task: str = ""
    n: int = 0  # the event


@attrs.frozen(slots=True)
class Generation:
    """One formed group. `members`: task -> rank, None for a task that does not count."""

    group: int
    generation: int
    formed: float
    members: dict[str, int | None]


@attrs.frozen(slots=True)
class Epoch:
    """One master."""

    epoch: int
    began: float
    place: str


@attrs.frozen(slots=True)
class Container:
    """The container that a task has."""

    serial: int
    name: str = ""
    node: str = ""
    devices: list[Any] = attrs.field(factory=list)


_NO_CONTAINER = Container(-1)


@attrs.define(slots=True)
class Timeline:
    """The course of a job so far. `n`: the last event taken."""

    n: int = 0
    at: float = 0.0
    attempts: dict[tuple[str, int], Attempt] = attrs.field(factory=dict)
    generations: list[Generation] = attrs.field(factory=list)
    epochs: list[Epoch] = attrs.field(factory=list)
    marks: list[Mark] = attrs.field(factory=list)
    counts: Counter[str] = attrs.field(factory=Counter)  # kind -> the marks that there were, with those left out
    forgotten: int = 0  # attempts that are not kept
    latest: dict[str, int] = attrs.field(factory=dict)  # task -> its latest attempt
    _incomplete: list[Event] = attrs.field(init=False, factory=list)  # of a decision whose last event is not here yet
    _containers: dict[str, Container] = attrs.field(init=False, factory=dict)
    _incidents: dict[str, dict[str, Any]] = attrs.field(init=False, factory=dict)  # unit -> the one that is not settled
    _kept: Counter[str] = attrs.field(init=False, factory=Counter)  # kind -> marks
    _members: int = attrs.field(init=False, default=0)

    def take(self, event: Event) -> None:
        """Take in the next event. Those of one decision are taken in together; of one that its master left incomplete, nothing."""
        if event.type == "master-started":
            self._incomplete = []
        self._incomplete.append(event)
        if "rest" not in event.data:
            decision, self._incomplete = self._incomplete, []
            for part in decision:
                self._change(part)
        self.n, self.at = event.n, event.at

    def _change(self, event: Event) -> None:
        change = CHANGES.get(event.type)
        if change is None:
            return
        try:
            change(self, event.data, event)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
            return  # fields of other shapes than ours

    # -- for the changes --

    def attempt(self, task: str, number: int, at: float) -> Attempt:
        """Return an attempt, which begins with the event at this time if there was none of it before."""
        if type(number) is not int:
            raise TypeError
        known = self.attempts.get((task, number))
        if known is not None:
            return known
        task, box = sys.intern(task), self._containers.get(task, _NO_CONTAINER)
        begun = Attempt(task, number, node=box.node, container=box.name, devices=box.devices, began=at)
        self.attempts[task, number] = begun
        self.latest[task] = max(number, self.latest.get(task, 0))
        if len(self.attempts) > max(ATTEMPTS, 2 * len(self.latest)):
            self._forget_attempts()
        return begun

    def next_attempt(self, task: str, at: float) -> Attempt:
        """Return the attempt of a task that goes on or is to come."""
        number = self.latest.get(task, 0)
        last = self.attempts.get((task, number))
        return last if last is not None and last.ended is None else self.attempt(task, number + 1, at)

    def bring(self, task: str, box: Container, at: float) -> None:
        """Note the container that a task has now."""
        self._containers[sys.intern(task)] = box
        attempt = self.attempts.get((task, self.latest.get(task, 0)))
        if attempt is not None and attempt.ended is None:
            attempt.container, attempt.node, attempt.devices = box.name, box.node, box.devices
            attempt.granted = at if attempt.granted is None else attempt.granted

    def container_of(self, task: str) -> Container | None:
        return self._containers.get(task)

    def drop(self, task: str, serial: int) -> None:
        """Note that a container of a task is gone."""
        if self._containers.get(task, _NO_CONTAINER).serial == serial:
            del self._containers[task]

    def form(self, generation: Generation) -> None:
        """Add a generation, or members to the last one of its group."""
        for known in reversed(self.generations):
            if (known.group, known.generation) == (generation.group, generation.generation):
                known.members.update(generation.members)
                break
        else:
            self.generations.append(generation)
        self._members += len(generation.members)
        while self._members > MEMBERS and len(self.generations) > 1:
            self._members -= len(self.generations.pop(0).members)

    def lead(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        del self.epochs[:-EPOCHS]

    def mark(self, event: Event, kind: str, text: str, task: str = "") -> None:
        self.counts[kind] += 1
        self._kept[kind] += 1
        self.marks.append(Mark(event.at, kind, text if len(text) <= TEXT else text[: TEXT - 1] + "…", task, event.n))
        if self._kept[kind] > MARKS:
            self._thin(kind)

    def open_incident(self, event: Event) -> None:
        self._incidents[event.data["unit"]] = {**event.data, "at": event.at, "n": event.n}

    def settle_incident(self, unit: str, cause: Mapping[str, Any]) -> None:
        """Correct the mark of a restart whose cause was another one."""
        incident = self._incidents.pop(unit, None)
        if incident is None or not incident["again"]:
            return
        for place in range(len(self.marks) - 1, -1, -1):
            mark = self.marks[place]
            if mark.n == incident["n"]:
                text = incident_text({**incident, "cause": cause}, len(self.latest))[:TEXT]
                self.marks[place] = attrs.evolve(mark, text=text, task=str(cause["task"]))
            if mark.n <= incident["n"]:
                return

    def end_pending(self, at: float, reason: str) -> None:
        """End the attempts that never began: their job ends."""
        for task, number in self.latest.items():
            attempt = self.attempts[task, number]
            if attempt.ended is None and attempt.state == PENDING:
                attempt.ended, attempt.state, attempt.reason = at, KILLED, attempt.reason or reason

    def unfinished(self) -> list[Attempt]:
        attempts = [self.attempts[key] for key in self.latest.items()]
        return [attempt for attempt in attempts if attempt.ended is None]

    # -- bounds --

    def _forget_attempts(self) -> None:
        """Forget a tenth of the attempts, the oldest: never the latest of a task."""
        old = [key for key in self.attempts if self.latest[key[0]] != key[1]][: max(1, len(self.attempts) // 10)]
        for key in old:
            del self.attempts[key]
        self.forgotten += len(old)

    def _thin(self, kind: str) -> None:
        """Leave out every second mark of a kind, except its newest."""
        kept, is_left_out = [], self._kept[kind] % 2 == 0
        for mark in self.marks:
            if mark.kind == kind:
                is_left_out = not is_left_out
                if not is_left_out:
                    continue
            kept.append(mark)
        self._kept[kind] -= len(self.marks) - len(kept)
        self.marks = kept


# -- the changes --


def _master_started(timeline: Timeline, data: Data, event: Event) -> None:
    place = str(data.get("place") or "")
    timeline.lead(Epoch(event.epoch, event.at, place))
    timeline.mark(event, "master", f"master {event.epoch} {'started' if event.epoch == 1 else 'took over'} at {place}")


def _asked(timeline: Timeline, data: Data, event: Event) -> None:
    for task, _ in data["tasks"]:
        timeline.next_attempt(task, event.at)


def _granted(timeline: Timeline, data: Data, event: Event) -> None:
    devices = [str(device) for device in data.get("devices") or ()]
    timeline.bring(
        data["task"], Container(data["serial"], str(data["container"]), str(data["node"]), devices), event.at
    )


def _agent_connected(timeline: Timeline, data: Data, event: Event) -> None:
    """Learn the container of a task again where the note of it was lost, and its node where the agent knows better."""
    known = timeline.container_of(data["task"]) or _NO_CONTAINER
    node, name = str(data.get("node") or known.node), str(data.get("container") or known.name)
    if (data["serial"], node) != (known.serial, known.node):
        timeline.bring(data["task"], Container(data["serial"], name, node, known.devices), event.at)


def _container_ended(timeline: Timeline, data: Data, event: Event) -> None:
    timeline.drop(data["task"], data["serial"])


def _released(timeline: Timeline, data: Data, event: Event) -> None:
    for task, serial in data["tasks"]:
        timeline.drop(task, serial)


def _ordered(timeline: Timeline, data: Data, event: Event) -> None:
    for task, _, number, _ in data["tasks"] if data["verb"] == "prepare" else ():
        _stage(timeline.attempt(task, number, event.at), event.at)


def _stage(attempt: Attempt, at: float) -> None:
    if attempt.state == PENDING:
        attempt.state, attempt.staging = STAGING, at


def _staging(timeline: Timeline, data: Data, event: Event) -> None:
    _stage(_attempt_of(timeline, data, event), event.at)


def _attempt_of(timeline: Timeline, data: Data, event: Event) -> Attempt:
    return timeline.attempt(data["task"], data["attempt"], event.at)


def _ready(timeline: Timeline, data: Data, event: Event) -> None:
    attempt = _attempt_of(timeline, data, event)
    _stage(attempt, event.at)
    attempt.ready = event.at


def _generation_formed(timeline: Timeline, data: Data, event: Event) -> None:
    members = {sys.intern(task): data["ranks"].get(task) for task, _ in data["members"]}
    for task, number in data["members"]:
        attempt = timeline.attempt(task, number, event.at)
        attempt.generation, attempt.rank = data["generation"], members[task]
    timeline.form(Generation(data["group"], data["generation"], event.at, members))


def _member_joined(timeline: Timeline, data: Data, event: Event) -> None:
    attempt = _attempt_of(timeline, data, event)
    attempt.generation, attempt.rank = data["generation"], data["rank"]
    timeline.form(Generation(data["group"], data["generation"], event.at, {attempt.task: attempt.rank}))


def _started(timeline: Timeline, data: Data, event: Event) -> None:
    attempt = _attempt_of(timeline, data, event)
    attempt.started, attempt.state = event.at, RUNNING


def _exited(timeline: Timeline, data: Data, event: Event) -> None:
    attempt = _attempt_of(timeline, data, event)
    attempt.exited, attempt.state = event.at, RUNNING


def _uploaded(timeline: Timeline, data: Data, event: Event) -> None:
    _attempt_of(timeline, data, event).uploaded = event.at


def _committers_named(timeline: Timeline, data: Data, event: Event) -> None:
    """End the attempts that have no output, and so nothing to commit."""
    for task, number in data["attempts"]:
        attempt = timeline.attempt(task, number, event.at)
        if attempt.uploaded is None:
            _succeed(attempt, event.at)


def _output_committed(timeline: Timeline, data: Data, event: Event) -> None:
    _succeed(_attempt_of(timeline, data, event), event.at)


def _succeed(attempt: Attempt, at: float) -> None:
    attempt.state, attempt.ended = SUCCEEDED, at


def _commits_abandoned(timeline: Timeline, data: Data, event: Event) -> None:
    """End the commits whose containers are gone; the others are stopped."""
    for attempt in timeline.unfinished():
        if attempt.uploaded is not None and timeline.container_of(attempt.task) is None:
            attempt.state, attempt.ended = KILLED, event.at


def _attempt_ended(timeline: Timeline, data: Data, event: Event) -> None:
    attempt = _attempt_of(timeline, data, event)
    reason, figures = str(data["reason"]), dict(data.get("figures") or {})
    row = REASONS.get(reason)
    if attempt.state == PENDING or attempt.ended is None:
        attempt.state = KILLED if data.get("stopped") or row is None else row.final
    attempt.ended, attempt.reason, attempt.figures = event.at, reason, figures
    kind = _ENDS.get(reason)
    if kind is not None and not data.get("stopped"):
        timeline.mark(event, kind, sentence(attempt.task, attempt.words), attempt.task)


_ENDS = {"preempted": "preemption", "killed-by-user": "user"}  # reasons that are marks of their own -> the kind


def _written_off(timeline: Timeline, data: Data, event: Event) -> None:
    timeline.drop(data["task"], data["serial"])
    _attempt_ended(timeline, data, event)


def _task_failed(timeline: Timeline, data: Data, event: Event) -> None:
    number = data.get("attempt") or timeline.latest.get(data["task"], 1)
    attempt = timeline.attempt(data["task"], number, event.at)
    attempt.reason, attempt.figures = str(data["reason"]), dict(data.get("figures") or {})
    attempt.state, attempt.ended = str(data.get("final") or FAILED), attempt.ended or event.at
    timeline.mark(event, "trouble", f"{failure_text(data)}, for good", attempt.task)


def _incident(timeline: Timeline, data: Data, event: Event) -> None:
    timeline.open_incident(event)
    if data["again"]:
        text = incident_text({**data, "at": event.at}, len(timeline.latest))
        timeline.mark(event, "restart", text, str(data["cause"]["task"]))


def _settled(timeline: Timeline, data: Data, event: Event) -> None:
    timeline.settle_incident(data["unit"], data["cause"])


def _warned(timeline: Timeline, data: Data, event: Event) -> None:
    why = words(str(data["reason"]), {**(data.get("figures") or {}), "task": data["task"]})
    text = f"{data['task']} will be taken back in {format_seconds(data['seconds'])}: it {why}"
    timeline.mark(event, "preemption", text, data["task"])


def _resized(timeline: Timeline, data: Data, event: Event) -> None:
    sizes = ", ".join(f"{size} x {role}" for role, size in data["sizes"].items())
    changes = [f"{' and '.join(data[way])} {way}" for way in ("joined", "left") if data[way]]
    timeline.mark(event, "resize", f"the group goes on with {sizes}: {', '.join(changes)}")


def _scale_requested(timeline: Timeline, data: Data, event: Event) -> None:
    size, role, by = data["size"], data["role"], data["by"]
    if size is None:
        text = f"{by} left the number of {role} to the job's own rules"
    else:
        figures = data.get("figures")
        text = f"{by} asked for {size} x {role}" + (f": {scale_words(figures, size)}" if figures else "")
    timeline.mark(event, "resize" if by == "autoscaling" else "user", text)


def _kill_requested(timeline: Timeline, data: Data, event: Event) -> None:
    timeline.mark(event, "user", f"{data['by']} asked to kill the job" + (f": {data['why']}" if data["why"] else ""))


def _user_acted(timeline: Timeline, data: Data, event: Event) -> None:
    timeline.mark(event, "user", f"{data['by']} {DEEDS[data['action']].format_map(data)}", data["task"])


def _save_requested(timeline: Timeline, data: Data, event: Event) -> None:
    how = "was due" if data["by"] == "schedule" else f"was asked for by {data['by']}"
    timeline.mark(event, "save", f"save {data['save']} {how}")


def _saved(timeline: Timeline, data: Data, event: Event) -> None:
    if data.get("gave_up"):
        text = f"{data['task']} could not store save {data['save']}: {data['gave_up']}"
        timeline.mark(event, "trouble", text, data["task"])


def _checkpoint_saved(timeline: Timeline, data: Data, event: Event) -> None:
    size = f": {format_count(data['files'], 'file')}, {format_bytes(data['bytes'])}" if "files" in data else ""
    timeline.mark(event, "checkpoint", f"checkpoint set {data['set']} is whole{size}", data["task"])


def _trouble(timeline: Timeline, data: Data, event: Event) -> None:
    timeline.mark(event, "trouble", f"{data['task']} goes on, but {data['what']}: {data['detail']}", data["task"])


def _refused(timeline: Timeline, data: Data, event: Event) -> None:
    timeline.mark(event, "trouble", f"the engine refused {data['task']}: {data['detail']}", data["task"])


def _straggling(timeline: Timeline, data: Data, event: Event) -> None:
    timeline.mark(event, "trouble", f"{data['task']} is much slower than its peers: {pace_words(data)}", data["task"])


def _set_aside(timeline: Timeline, data: Data, event: Event) -> None:
    text = f"{place_words(data)} of {data['input']} was set aside, since {failed_words(data['failed'])} failed on it"
    timeline.mark(event, "trouble", text)


def _ending(timeline: Timeline, data: Data, event: Event) -> None:
    task, state = str(data.get("task") or ""), str(data["state"])
    timeline.end_pending(event.at, "not-needed" if state == SUCCEEDED else str(data["reason"]))
    why = words(str(data["reason"]), {**(data.get("figures") or {}), "task": task, "role": task.partition(":")[0]})
    text = "the job is ending" if state == SUCCEEDED else f"the job is ending: {sentence(task, why) if task else why}"
    timeline.mark(event, "end", text, task)


def _ended(timeline: Timeline, data: Data, event: Event) -> None:
    for attempt in timeline.unfinished():
        attempt.state, attempt.ended = KILLED, event.at
    timeline.mark(event, "end", f"the job ended: {data['state']}")


# The events that a timeline takes; readers of long logs pass over the others unread.
CHANGES: dict[str, Callable[[Timeline, Data, Event], None]] = {
    "master-started": _master_started,
    "asked": _asked,
    "granted": _granted,
    "agent-connected": _agent_connected,
    "container-ended": _container_ended,
    "released": _released,
    "ordered": _ordered,
    "staging": _staging,
    "ready": _ready,
    "generation-formed": _generation_formed,
    "member-joined": _member_joined,
    "started": _started,
    "exited": _exited,
    "uploaded": _uploaded,
    "committers-named": _committers_named,
    "output-committed": _output_committed,
    "commits-abandoned": _commits_abandoned,
    "attempt-ended": _attempt_ended,
    "attempt-written-off": _written_off,
    "task-failed": _task_failed,
    "incident": _incident,
    "settled": _settled,
    "warned": _warned,
    "resized": _resized,
    "scale-requested": _scale_requested,
    "kill-requested": _kill_requested,
    "user-acted": _user_acted,
    "save-requested": _save_requested,
    "saved": _saved,
    "checkpoint-saved": _checkpoint_saved,
    "trouble": _trouble,
    "refused": _refused,
    "straggling": _straggling,
    "shard-set-aside": _set_aside,
    "ending": _ending,
    "ended": _ended,
}
