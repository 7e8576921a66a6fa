"""Rendezvous of programs that keep running while their peers come and go. Soft state, as barriers and locks are (`core.coordination`).

The processes of a role meet at a name, and the master forms them into numbered *rounds*. An agent names one row for each of its processes:
the process waits for a round, or is in one. A process that joins anew has another row. So everything follows from the rows that there are:

- A round is *whole* while each of its members is in it: as many rows name it as it has members. A row that its agent names no more, whose
  agent is away or whose task is being stopped, does not count. Once a round is not whole it is over for good, and those who are in it get
  `broken`.
- A member that joins anew breaks its round for the others, unless it says that all of them agreed to leave it (`agreed`).
- While somebody waits and the newest round is whole, its members get `wanted`: they agree to leave, and join anew.
- The next round opens when nobody is in the newest one any more, and the tasks that wait with all their copies are at least the role's
  minimum. If a task's attempt was in a round before, its copies without a row have ended, or come later: nobody waits for them. If none of
  those who wait was in the newest round, each task of the role whose program runs must wait: so the first round has all that began
  together, and those who are still being prepared come later.
- Members that were in the newest round come first, in their order; the others follow by task and copy.

With each round goes the number of the role's tasks whose programs ended well: who is new then comes too late.

A new master has heard every row before it forms a round or breaks one. Rows carry the newest round that their process was in (`after`), its
size and their rank there, so numbers go on, and ranks keep their order. The log has the number of a training's newest round, also if nobody
is left who was in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from trainmaster.core.input.trainings import training_name
from trainmaster.core.machine.phases import FINISHED, READING
from trainmaster.core.machine.ranks import copies
from trainmaster.core.machine.state import State, newest_round, unfinished
from trainmaster.core.waits import BROKEN, LONGEST, PAYLOAD, WANTED

SHOWN = 4  # tasks that are named in a message
PLACES = 4096  # rendezvous whose newest round is remembered, the newest ones

Place: TypeAlias = tuple[str, str]  # role, name
Push: TypeAlias = dict[str, Any]


@attrs.define(eq=False, repr=False)
class _Row:
    task: str
    id: int
    place: Place
    copy: int
    is_in: bool  # it is in round `after`; else it waits
    after: int  # the newest round that its process was in; 0: none
    rank: int  # in that round, as is the size
    size: int
    payload: str
    step: int
    agreed: bool
    pushed: set[str] = attrs.field(
        factory=set
    )  # the words that were pushed to it since it came, or since its round opened


class Rendezvous:
    """All rendezvous of one master."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, _Row]] = {}  # by task
        self._at: dict[Place, dict[tuple[str, int], _Row]] = {}
        self._newest: dict[Place, int] = {}
        self._met: dict[str, set[Place]] = {}  # by task: where its attempt was in a round

    def take(
        self, task: str, role: str, rows: Iterable[Sequence[Any]], rounds: Mapping[str, int], is_new: bool
    ) -> set[Place]:
        """Take in all rows of a task. Return the places that have changed.

        `rounds`: the newest rounds that its attempt was in, by name: sent on a new connection, so that no number comes twice.
        `is_new`: on a new connection of the agent, which has the last word about what its programs heard. Raises ValueError or TypeError
        where a row is not of its form.
        """
        checked = [_checked(row) for row in rows]
        for name, number in rounds.items():
            self._note((role, name), number)
            self._met.setdefault(task, set()).add((role, name))
        known = self._rows.setdefault(task, {})
        named = {number for number, *_ in checked}
        touched = {self._drop(row) for number, row in [*known.items()] if number not in named}
        for number, name, copy, is_in, fields in checked:
            row = known.get(number)
            if row is None:
                known[number] = row = _Row(task, number, (role, name), copy, is_in, **fields)
                self._at.setdefault(row.place, {})[task, number] = row
                touched.add(row.place)
            elif is_new:
                row.is_in, row.after, row.rank, row.size = is_in, fields["after"], fields["rank"], fields["size"]
                row.pushed.clear()
                touched.add(row.place)
        return touched

    def forget(self, task: str) -> set[Place]:
        """Forget all rows of a task: its attempt is over, or its agent is away. Return the places that have changed."""
        self._met.pop(task, None)
        return {self._drop(row) for row in [*self._rows.get(task, {}).values()]}

    @property
    def places(self) -> set[Place]:
        return {*self._at}

    def settle(self, state: State, places: Iterable[Place], pushes: dict[str, Push]) -> None:
        """Form the rounds that can be formed, and tell members of those that are over or wanted."""
        for place in places:
            if place in self._at:
                self._settle(state, place, pushes)

    def waits(self, state: State) -> Iterator[tuple[str, str]]:
        """Yield each task that waits for a round, and in words for whom."""
        for place in self._at:
            rows = self._rows_at(state, place)
            if waiting := sorted({row.task for row in rows if not row.is_in}):
                text = f"waits for its peers: {self._why_none_opens(state, place, rows)}"
                yield from ((task, text) for task in waiting)

    # -- below --

    def _rows_at(self, state: State, place: Place) -> list[_Row]:
        return [row for row in self._at[place].values() if not state.tasks[row.task].doomed]

    def _why_none_opens(self, state: State, place: Place, rows: list[_Row]) -> str:
        newest = max(self._newest.get(place, 0), *(row.after for row in rows))
        if members := {row.task for row in rows if row.is_in and row.after == newest}:
            return f"{list_in_words(sorted(members))} {'is' if len(members) == 1 else 'are'} still in round {newest}"
        living = unfinished(state, place[0])
        complete = self._complete(state, place, rows)
        there = {row.task for row in complete}
        least = min(state.known_job.roles[place[0]].replicas.min, len(living))
        if len(there) >= least:  # then the first round waits for all that run
            living = [task for task in living if task.phase in READING and not task.doomed]
        required = f"at least {least}" if len(there) < least else f"{len(living)}"
        came = {task.key: len({row.copy for row in rows if row.task == task.key}) for task in living}
        missing = [(task.key, came[task.key], _copies(state, task.key)) for task in living if task.key not in there]
        return attendance(len(there), required, missing)

    def _drop(self, row: _Row) -> Place:
        del self._rows[row.task][row.id]
        del self._at[row.place][row.task, row.id]
        if not self._at[row.place]:
            del self._at[row.place]
        return row.place

    def _note(self, place: Place, number: int) -> int:
        newest = max(number, self._newest.pop(place, 0))
        self._newest[place] = newest  # the newest place comes last
        if len(self._newest) > PLACES:
            del self._newest[next(iter(self._newest))]
        return newest

    def _settle(self, state: State, place: Place, pushes: dict[str, Push]) -> None:
        rows = self._rows_at(state, place)
        if not rows:
            return
        newest = self._note(place, max(newest_round(state, training_name(*place)), *(row.after for row in rows)))
        members = [row for row in rows if row.is_in]
        complete = self._complete(state, place, rows)
        present = sum(row.after == newest and (row.is_in or row.agreed) for row in rows)
        is_wanted = any(not row.is_in for row in complete)
        inside = {row.task for row in members}
        waiting = [row for row in complete if row.task not in inside]
        for row in members:
            if row.after < newest or present < row.size:
                _tell(pushes, state, row, BROKEN)
            elif is_wanted:
                _tell(pushes, state, row, WANTED)
        if not any(row.after == newest for row in members) and self._is_enough(state, place[0], waiting, newest):
            waiting.sort(key=lambda row: _place_in_order(state, row, newest))
            self._open(state, waiting, self._note(place, newest + 1), pushes)

    def _complete(self, state: State, place: Place, rows: list[_Row]) -> list[_Row]:
        """Return the rows of those tasks that are here with all their copies which have not ended, the newest row of each copy.

        A copy whose link broke is here without a round, as one that begins is. So its attempt tells whether its fellows have been here.
        """
        by_task: dict[str, dict[int, _Row]] = {}
        for row in rows:
            by_task.setdefault(row.task, {})[row.copy] = row
        return [
            row
            for task, by_copy in by_task.items()
            if place in self._met.get(task, ()) or len(by_copy) >= _copies(state, task)
            for row in by_copy.values()
        ]

    def _is_enough(self, state: State, role: str, waiting: list[_Row], newest: int) -> bool:
        tasks = {row.task for row in waiting}
        living = unfinished(state, role)
        if not tasks or len(tasks) < min(state.known_job.roles[role].replicas.min, len(living)):
            return False
        has_survivors = newest > 0 and any(row.after == newest for row in waiting)
        return has_survivors or all(task.key in tasks for task in living if task.phase in READING and not task.doomed)

    def _open(self, state: State, rows: list[_Row], number: int, pushes: dict[str, Push]) -> None:
        members = [
            [row.task, row.copy, state.tasks[row.task].address, row.payload, row.step, row.after != number - 1 or number == 1]
            for row in rows
        ]  # fmt: skip
        finished = sum(task.phase in FINISHED for task in state.members_of(rows[0].place[0]))
        for rank, row in enumerate(rows):
            row.is_in, row.after, row.rank, row.size = True, number, rank, len(rows)
            row.pushed.clear()
            self._met.setdefault(row.task, set()).add(row.place)
            push_to(pushes, state, row.task).setdefault("opened", []).append([row.id, number, rank, members, finished])


def push_to(pushes: dict[str, Push], state: State, task: str) -> Push:
    """Return the push to a task's agent, begun where there is none yet."""
    return pushes.setdefault(task, {"attempt": state.tasks[task].attempt, "over": []})


def attendance(there: int, required: str, missing: Sequence[tuple[str, int, int]]) -> str:
    """Say who of those that meet has come: `1 of at least 2 are there, worker:1 has not come`.

    `missing`: tasks, each with the number of its processes that have come, and of all.
    """
    tasks = [task if not came else f"{task} ({came} of {all_} processes)" for task, came, all_ in missing]
    return f"{there} of {required} are there, {list_in_words(tasks)} {'has' if len(tasks) == 1 else 'have'} not come"


def list_in_words(names: Sequence[str]) -> str:
    """Return `worker:0, worker:1, worker:2 and 6 more`."""
    shown = names if len(names) <= SHOWN else [*names[: SHOWN - 1], f"{len(names) - SHOWN + 1} more"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def _tell(pushes: dict[str, Push], state: State, row: _Row, word: str) -> None:
    if word not in row.pushed:
        row.pushed.add(word)
        push_to(pushes, state, row.task).setdefault(word, []).append([row.id, row.after])


def _copies(state: State, task: str) -> int:
    return copies(state.role(state.tasks[task]).processes, state.tasks[task].devices)


def _place_in_order(state: State, row: _Row, newest: int) -> tuple[int, ...]:
    return (0, row.rank) if newest and row.after == newest else (1, state.tasks[row.task].index, row.copy)


def _checked(row: Any) -> tuple[int, str, int, bool, Mapping[str, Any]]:
    """Return a row of a message. Raises ValueError or TypeError where it is not of its form."""
    number, _, name, copy, is_in, _, after, more = row
    fields = {
        "after": after or 0, "payload": more.get("payload"), "step": more.get("step"), "rank": more.get("rank", 0),
        "size": more.get("size", 0), "agreed": more.get("agreed", False),
    }  # fmt: skip
    if (
        not isinstance(name, str) or not 0 < len(name) <= LONGEST or type(is_in) is not bool
        or any(type(value) is not int or value < 0 for value in (number, copy, *(fields[key] for key in ("after", "step", "rank", "size"))))
        or not isinstance(fields["payload"], str) or len(fields["payload"].encode()) > PAYLOAD or type(fields["agreed"]) is not bool
        or (is_in and not (fields["after"] and fields["rank"] < fields["size"]))
    ):  # fmt: skip
        raise ValueError(f"not a row of a rendezvous: {str(row)[:80]}")
    return number, name, copy, is_in, fields
