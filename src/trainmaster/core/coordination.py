"""Barriers and locks of programs, and their rendezvous (`core.rendezvous`). All are soft state, as leases are: no event tells of them.

An agent tells the master all waits of its attempt at each change and on each new connection (`take`): `[id, kind, name, copy, holds, age,
after]`. So a message that is lost or comes twice changes nothing. The answers are pushed: waits that are over, by id. One that the agent
still names on a new connection was not heard of, and is answered again.

*A lock* has one holder in the job, and a queue in the order of asking. It is freed by a wait that its agent names no more (it was let go,
its process died, it timed out), and by one whose attempt is over.

*A barrier* of a name is for the members of a group that have ranks; for those of a role without ranks, the members of that role. It opens
when each living one of them waits at it, with all its copies. A member lives if it runs, or is still to run for the first time. A member
that is being stopped is neither waited for nor let through: where a whole group restarts, nobody is.

A new master answers nobody until each task whose program may run has reported its waits, or is over. A lock is then held by the task that
says so. For each barrier, agents say which *round* they have passed (`passed`) and had passed as each wait began (`after`): where some were
let through a round and the message to others was lost, the others follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from trainmaster.core.foreign import printable
from trainmaster.core.input.leases import OVER
from trainmaster.core.machine.events import Recorded
from trainmaster.core.machine.phases import NEW, READING, READY, STAGING
from trainmaster.core.machine.ranks import copies
from trainmaster.core.machine.state import State, Task, joins_alone
from trainmaster.core.rendezvous import Push, Rendezvous, attendance, list_in_words, push_to
from trainmaster.core.waits import BARRIER, LOCK, LONGEST, RENDEZVOUS, WAITS

ROUNDS = 4096  # barriers whose rounds are remembered, the newest ones

Place: TypeAlias = tuple[Any, ...]  # what is waited at: (LOCK, name), or (BARRIER, group, role or "", name)


@attrs.define(eq=False, repr=False)
class _Wait:
    task: str
    id: int
    place: Place
    copy: int
    order: tuple[int, float]
    after: int | None
    is_over: bool = False
    round: int = 0


class Coordination:
    """The barriers, locks and rendezvous of one master. `expected`: tasks whose programs may run."""

    def __init__(self, expected: Iterable[str] = ()) -> None:
        self._expected = set(expected)
        self._waits: dict[str, dict[int, _Wait]] = {}  # by task
        self._at: dict[Place, dict[tuple[str, int], _Wait]] = {}
        self._holders: dict[Place, _Wait] = {}
        self._rounds: dict[Place, int] = {}  # of each barrier, how often it has opened
        self._missing: dict[Place, str] = {}  # of each barrier, a member that had not come when it was looked at last
        self._count = 0
        self._rendezvous = Rendezvous()

    def take(self, state: State, task: str, message: Mapping[str, Any]) -> dict[str, Push]:
        """Take in all that an agent says its attempt waits for and holds. Return what is to be pushed, by task.

        Raises ValueError, TypeError or LookupError where the message is not of its form.
        """
        named_rows = message.get("waits") or ()
        rows = [_checked(row) for row in named_rows if row[1] != RENDEZVOUS]
        joins = [row for row in named_rows if row[1] == RENDEZVOUS]
        present, passed = state.tasks[task], dict(message.get("passed") or {})
        if len(named_rows) > WAITS or not all(type(count) is int for count in passed.values()):
            raise ValueError("too many waits, or a round that is not a number")
        rounds = dict(message.get("rounds") or {})
        if not all(type(count) is int for count in rounds.values()):
            raise ValueError("a round is a number")
        is_first = task in self._expected
        self._expected.discard(task)
        if present.attempt != message.get("attempt") or present.phase not in READING:
            rows, joins, passed, rounds = [], [], {}, {}
        for name, count in passed.items():
            place = _place(present, BARRIER, str(name))
            self._note_round(place, max(count, self._rounds.get(place, 0)))
        is_new = "passed" in message  # on a new connection
        joined = self._rendezvous.take(task, present.role, joins, rounds, is_new)
        known = self._waits.setdefault(task, {})
        named = {row[0] for row in rows}
        touched = {wait.place for wait in [*known.values()] if wait.id not in named and self._forget(wait)}
        pushes: dict[str, Push] = {}
        for number, kind, name, copy, holds, age, after in rows:
            if number not in known:
                self._count += 1
                order = (0, -age) if is_first else (1, float(self._count))
                wait = _Wait(task, number, _place(present, kind, name), copy, order, after)
                known[number] = self._at.setdefault(wait.place, {})[task, number] = wait
                touched.add(wait.place)
                if holds and kind == LOCK and wait.place not in self._holders:
                    self._holders[wait.place], wait.is_over = wait, True
            elif known[number].is_over and not holds and is_new:  # else the answer is on its way
                _push(pushes, state, known[number])
        if not self._expected:
            for place in self._at if is_first else touched:
                self._settle(state, place, pushes)
            self._rendezvous.settle(state, self._rendezvous.places if is_first else joined, pushes)
        return pushes

    def lose(self, state: State, task: str) -> dict[str, Push]:
        """Note that a task's agent is away: its processes are in no round any more. Return what is to be pushed, by task."""
        pushes: dict[str, Push] = {}
        left = self._rendezvous.forget(task)
        if not self._expected:
            self._rendezvous.settle(state, left, pushes)
        return pushes

    def follow(self, state: State, events: Iterable[Recorded]) -> dict[str, Push]:
        """Follow the events of a turn: attempts that are over, members that come and go. Return what is to be pushed, by task."""
        has_changed = False
        for event in events:
            has_changed = True
            if event.type in OVER:
                self._expected.discard(event.data["task"])
                self._rendezvous.forget(event.data["task"])
                for wait in [*self._waits.pop(event.data["task"], {}).values()]:
                    self._forget(wait)
            elif event.type == "generation-formed":
                group = event.data["group"]
                self._rounds = {place: count for place, count in self._rounds.items() if place[1] != group}
        pushes: dict[str, Push] = {}
        if has_changed and not self._expected:
            for place in [*self._at]:
                self._settle(state, place, pushes)
            self._rendezvous.settle(state, self._rendezvous.places, pushes)
        return pushes

    def waits(self, state: State) -> dict[str, str]:
        """Say of each task whose programs wait for others for whom they do."""
        texts: dict[str, list[str]] = {}
        if self._expected:
            text = f"waits until the new master has heard from {list_in_words(sorted(self._expected))}"
            tasks = {wait.task for waits in self._waits.values() for wait in waits.values() if not wait.is_over}
            return dict.fromkeys(tasks | {task for task, _ in self._rendezvous.waits(state)}, text)
        for place, at in self._at.items():
            waits = [wait for wait in at.values() if not wait.is_over and not state.tasks[wait.task].doomed]
            if tasks := {wait.task for wait in waits}:
                text = self._lock_text(place) if place[0] == LOCK else _barrier_text(state, place, waits)
                for task in tasks:
                    texts.setdefault(task, []).append(text)
        for task, text in self._rendezvous.waits(state):
            texts.setdefault(task, []).append(text)
        return {task: "; ".join(parts) for task, parts in texts.items()}

    # -- below --

    def _lock_text(self, place: Place) -> str:
        holder = self._holders.get(place)
        return f"waits for the lock {printable(place[1], LONGEST)}" + (f", which {holder.task} holds" if holder else "")

    def _forget(self, wait: _Wait) -> bool:
        self._waits.get(wait.task, {}).pop(wait.id, None)
        waits = self._at.get(wait.place, {})
        waits.pop((wait.task, wait.id), None)
        if not waits:
            self._at.pop(wait.place, None)
            self._missing.pop(wait.place, None)
        if self._holders.get(wait.place) is wait:
            del self._holders[wait.place]
        return True

    def _settle(self, state: State, place: Place, pushes: dict[str, Push]) -> None:
        """Let through whoever need not wait at a place any more."""
        waits = [
            wait for wait in self._at.get(place, {}).values() if not wait.is_over and not state.tasks[wait.task].doomed
        ]
        if place[0] == LOCK:
            if place not in self._holders and waits:
                self._holders[place] = first = min(waits, key=lambda wait: wait.order)
                self._let_through(state, [first], pushes)
            return
        count = self._rounds.get(place, 0)
        late = [wait for wait in waits if self._was_opened(state, wait, count)]
        self._let_through(state, late, pushes)
        rest = [wait for wait in waits if not wait.is_over]
        if rest and self._is_complete(state, place, rest):
            self._note_round(place, count + 1)
            self._let_through(state, rest, pushes)

    def _was_opened(self, state: State, wait: _Wait, count: int) -> bool:
        """Tell whether the barrier has opened since the wait began, by another master, whose message was lost."""
        if (
            wait.after is None
        ):  # the attempt has passed no round; where all began together, none had been opened before it
            task = state.tasks[wait.task]
            return count > 0 and not any(joins_alone(state, member) for member in _members(state, task))
        return wait.after < count

    def _is_complete(self, state: State, place: Place, waits: list[_Wait]) -> bool:
        arrived = _arrived(waits)
        if (last := self._missing.get(place)) is not None and _is_missing(state, state.tasks[last], arrived):
            return False
        for member in _members(state, state.tasks[waits[0].task]):
            if _is_missing(state, member, arrived):
                self._missing[place] = member.key
                return False
        return True

    def _let_through(self, state: State, waits: Iterable[_Wait], pushes: dict[str, Push]) -> None:
        for wait in waits:
            wait.is_over, wait.round = True, self._rounds.get(wait.place, 0)
            _push(pushes, state, wait)

    def _note_round(self, place: Place, count: int) -> None:
        self._rounds.pop(place, None)  # the newest comes last
        self._rounds[place] = count
        if len(self._rounds) > ROUNDS:
            del self._rounds[next(iter(self._rounds))]


def _push(pushes: dict[str, Push], state: State, wait: _Wait) -> None:
    push_to(pushes, state, wait.task)["over"].append([wait.id, wait.round])


def _place(task: Task, kind: str, name: str) -> Place:
    return (LOCK, name) if kind == LOCK else (BARRIER, task.group, "" if task.counts else task.role, name)


def _members(state: State, task: Task) -> Iterator[Task]:
    """Yield the members that meet at the barriers of a task."""
    if not task.counts:
        yield from state.members_of(task.role)
        return
    for member in state.members(state.groups[task.group]):
        if member.counts:
            yield member


def _is_living(task: Task) -> bool:
    is_to_come = task.phase in (NEW, STAGING, READY) and not task.past
    return not task.final and not task.doomed and (task.phase in READING or is_to_come)


def _arrived(waits: Iterable[_Wait]) -> dict[str, set[int]]:
    """Return the copies of each task that wait."""
    arrived: dict[str, set[int]] = {}
    for wait in waits:
        arrived.setdefault(wait.task, set()).add(wait.copy)
    return arrived


def _is_missing(state: State, member: Task, arrived: Mapping[str, set[int]]) -> bool:
    return _is_living(member) and len(arrived.get(member.key, ())) < _copies(state, member)


def _copies(state: State, member: Task) -> int:
    return copies(state.role(member).processes, member.devices)


def _barrier_text(state: State, place: Place, waits: list[_Wait]) -> str:
    arrived = _arrived(waits)
    living = [member for member in _members(state, state.tasks[waits[0].task]) if _is_living(member)]
    missing = [
        (member.key, len(arrived.get(member.key, ())), _copies(state, member))
        for member in living if _is_missing(state, member, arrived)
    ]  # fmt: skip
    return f"waits at the barrier {printable(place[3], LONGEST)}: {attendance(len(living) - len(missing), str(len(living)), missing)}"


def _checked(row: Any) -> tuple[int, str, str, int, bool, float, int | None]:
    """Return a row of a message. Raises ValueError or TypeError where it is not of its form."""
    number, kind, name, copy, holds, age, after = row
    if (
        type(number) is not int or kind not in (BARRIER, LOCK) or not isinstance(name, str) or not 0 < len(name) <= LONGEST
        or type(copy) is not int or type(holds) is not bool or type(age) not in (int, float) or type(after) not in (int, type(None))
    ):  # fmt: skip
        raise ValueError(f"not a wait: {str(row)[:80]}")
    return number, kind, name, copy, holds, age, after
