"""Lease shards to tasks. Leases are soft state: no event tells of them, and the state of a job knows nothing of them.

Every shard is in exactly one of three places. Those that are done or set aside are in its input's `ShardTable`, the others here:

    free --lease--> held --its task reports it--> done          held --give back, write off--> free          done --restore--> free

A task has one living attempt, so leases are the task's; `master.turn` lets only that attempt ask, and has the leases `follow` the events
of each turn. `held_part` cuts a report down to the shards that its task holds, so one that comes twice or late counts nothing.

A shard on which an attempt has failed is a *suspect*. It is leased alone, after all others, and rather to a task that has not failed on it.
So it stops no other shard, and the job sees whether the machine or the shard is bad. The state of the job knows which are suspects.

A restarted master learns from the log which shards are done. It leases nothing until each task that it must expect, since its program may
run, has named the shards that it holds, as agents do on every connection, or its attempt is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from trainmaster.core.input.ranges import RangeSet
from trainmaster.core.input.shards import Shard, ShardTable, records_by_number
from trainmaster.core.machine.events import Recorded

PASSES = 5  # asks of a task that has failed on a suspect which are left to others first; agents ask some 1.5 s for that
OVER = frozenset({"exited", "attempt-ended", "attempt-written-off"})  # events after which an attempt holds no shards


class _Input(NamedTuple):
    """The shards of one input that are not done."""

    free: RangeSet
    leased: dict[str, RangeSet]  # by task


class Leases:
    """The leases of one master, of all inputs. `tables`: the tables of the job's state, by input; `expected`: tasks."""

    def __init__(self, tables: Mapping[str, ShardTable], expected: Iterable[str] = ()) -> None:
        self._tables, self._expected = tables, set(expected)
        self._inputs: dict[str, _Input] = {}
        self._passes: dict[tuple[str, int], int] = {}  # (input, suspect) -> the asks that were left to others

    def figures(self, name: str) -> dict[str, int]:
        free, leased = self._input(name)
        return {"held": sum(ranges.count for ranges in leased.values()), "free": free.count}

    def lease(
        self,
        name: str,
        task: str,
        want: int,
        accused: Mapping[int, Set[str]] | None = None,
        withheld: Set[int] = frozenset(),
    ) -> list[Shard]:
        """Lease up to `want` shards, the lowest free numbers; none while an expected task may still hold them.

        `accused`: further suspects, and the tasks that failed on them. `withheld`: those of them that nobody gets now.
        """
        if self._expected or want < 1:
            return []
        free, leased = self._input(name)
        task_ranges = leased.setdefault(task, RangeSet())
        accused = accused or {}
        kept_back = self._tables[name].suspects.union(RangeSet.of(accused)).intersection(free)
        free.subtract(kept_back)
        fair = free.count // (2 * len(leased))  # guided self-scheduling: batches shrink near the end
        ranges = free.take(max(1, min(want, fair)))
        free.update(kept_back)
        if not ranges:
            failed = {
                number: self._failed_on(name, number) | accused.get(number, set())
                for number in kept_back
                if number not in withheld
            }
            suspect = self._suspect(name, task, failed)
            ranges = [] if suspect is None else [(suspect, suspect + 1)]
            free.subtract(RangeSet(ranges))
        shards = []
        for first, end in ranges:
            task_ranges.add(first, end)
            shards += [self._tables[name].shard(number) for number in range(first, end)]
        return shards

    def answer(self, name: str, shards: Sequence[Shard]) -> dict[str, Any]:
        """Return the answer to an agent that asked for shards: the leased ones, or whether tasks hold all that are not over (`taken`)."""
        answer = self._tables[name].answer(shards)
        return answer if shards else {**answer, "taken": not self._expected and not self._input(name).free}

    def _suspect(self, name: str, task: str, failed: Mapping[int, Set[str]]) -> int | None:
        """Return the suspect that the task is to try, where there is one; one that it has failed on is left to others for a while.

        `failed`: the suspects, and the tasks that have failed on each.
        """
        for number, tasks in failed.items():
            passes = self._passes.get((name, number), 0)
            if task not in tasks or passes >= PASSES or not self._inputs[name].leased.keys() - tasks:
                self._passes.pop((name, number), None)
                return number
            self._passes[name, number] = passes + 1
        return None

    def _failed_on(self, name: str, number: int) -> set[str]:
        return {str(attempt[0]) for attempt in self._tables[name].failed(number)}

    def give_back(self, name: str, task: str, ranges: Any) -> None:
        """Free the ranges (JSON form) that the task will not read after all. Raises ValueError on other forms."""
        free, leased = self._input(name)
        if task in leased:
            unread = RangeSet.from_json(ranges).intersection(leased[task])
            leased[task].subtract(unread)
            free.update(unread)

    def hold(self, task: str, holds: Mapping[str, Any], *, may_hold: bool = True) -> dict[str, list[list[int]]]:
        """Note that the task holds exactly these (input -> ranges). Return those that it must drop: done, or another's.

        `may_hold` is False where another attempt than the present one says so: it must drop all. The task is expected no longer even then:
        it has one container, and the agent in that has spoken. Raises ValueError where these are not ranges.
        """
        reported = {name: RangeSet.from_json(holds.get(name, [])) for name in self._tables}
        self._expected.discard(task)
        for name, ranges in reported.items() if may_hold else ():
            free, leased = self._input(name)
            free.update(leased.pop(task, RangeSet()))  # it may name less: an answer of ours was lost on the way
            if kept := ranges.intersection(free):
                free.subtract(kept)
                ranges.subtract(kept)
                leased[task] = kept
        return {name: ranges.to_json() for name, ranges in reported.items() if ranges}

    def write_off(self, task: str) -> None:
        """Free what the task holds: its attempt is over."""
        self._expected.discard(task)
        for free, leased in self._inputs.values():
            free.update(leased.pop(task, RangeSet()))

    def held_part(self, task: str, report: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a report of done shards (`input`, `ranges`, `records`) with those alone that the task holds. A malformed one stays."""
        if (name := str(report.get("input"))) not in self._tables:
            return report
        leased = self._input(name).leased.get(task, RangeSet())
        try:
            reported = RangeSet.from_json(report.get("ranges"))
            if all(leased.covers(first, end) for first, end in reported.ranges()):
                return report
            records = records_by_number(report["ranges"], reported, report.get("records"))
        except ValueError:
            return report
        part = reported.intersection(leased)
        return {**report, "ranges": part.to_json(), "records": records and [records[number] for number in part]}

    def follow(self, events: Iterable[Recorded]) -> None:
        """Follow the events of a turn: attempts that are over, shards that are done or returned."""
        for event in events:
            if event.type in OVER:
                self.write_off(event.data["task"])
            elif event.type == "shard-set-aside" and (name := event.data["input"]) in self._inputs:
                free, leased = self._inputs[name]
                for ranges in (free, *leased.values()):
                    ranges.subtract(RangeSet.from_json(event.data["ranges"]))
            elif event.type in ("shards-done", "shards-returned") and (name := event.data["input"]) in self._inputs:
                free, leased = self._inputs[name]
                for first, end in event.data["ranges"]:
                    if event.type == "shards-returned":
                        free.add(first, end)
                    elif (task_ranges := leased.get(event.data["task"])) is not None:
                        task_ranges.discard(first, end)

    def _input(self, name: str) -> _Input:
        if name not in self._inputs:
            self._inputs[name] = _Input(self._tables[name].remaining(), {})
        return self._inputs[name]
