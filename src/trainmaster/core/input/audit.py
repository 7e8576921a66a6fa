"""The proof that each record was counted exactly once, made from the event log alone.

The audit keeps no leases and trusts none: it walks the events, and checks every `shards-done` against the shards done
before. A restored checkpoint set begins a new line: shards done after the set's marks no longer count, must have been
returned, and are to be counted again. The work on a shard may be in outputs that its attempt has yet to commit: where that
ends before, the shard must have been returned, or it is *dropped*, and named. A shard that was set aside is counted
neither before nor afterwards, and is named.
So at the end each shard that is done was counted once along the sets that were really restored, and shards that were
counted and taken back are shown as such.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from trainmaster.core.input.ranges import RangeSet
from trainmaster.core.input.shards import (
    MEMBERS,
    OUTPUTS,
    PROGRAM,
    TABLE,
    ShardTable,
    failed_words,
    passed_words,
    place_words,
    trusted_words,
)
from trainmaster.core.input.trainings import Trainings
from trainmaster.core.machine.events import Recorded, whole

_UNKNOWN = -1
_FAULTS_SHOWN = 100


@attrs.frozen(slots=True)
class InputAudit:
    """The account of one input by the log. Ranges are in shard numbers; `records` is None where a program did not count them."""

    input: str
    total: int | None  # shards of all epochs; None where the input's list is not known
    counted: int
    records: int | None
    epochs: tuple[int | None, ...]  # records counted in each epoch
    missing: tuple[tuple[int, int], ...]
    set_aside: int  # shards that are over without being counted, since their readers kept failing
    set_aside_places: tuple[str, ...]  # where they are in the data, and who failed on them
    taken_back: int  # shards counted once and returned by restores
    restored: tuple[str, ...]
    in_parts: int  # shards committed in parts of outputs
    given_back: int  # shards counted once and returned since an attempt had not committed what it made of them
    dropped: tuple[str, ...]  # whose work was in outputs that were not committed, and which were not returned
    trusted: tuple[str, ...]  # whose work is kept where the program of an attempt that ended early has kept it
    faults: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.missing and not self.faults and not self.set_aside and not self.dropped


@attrs.frozen(slots=True)
class FeedAudit:
    """The account of one feed by the log, of all attempts. `rows`: those that programs got; `left`: those that were fed for nobody."""

    feed: str
    rounds: int
    batches: int  # read
    again: int  # fed a second time, since their first reader was lost
    rows: int
    left: int
    end: int | None  # the rows that each task was to read
    faults: tuple[str, ...]


@attrs.frozen(slots=True)
class Audit:
    """The verdict over all inputs read as shards, and all feeds."""

    inputs: tuple[InputAudit, ...]
    feeds: tuple[FeedAudit, ...] = ()

    @property
    def ok(self) -> bool:
        """Tell whether no shard was counted twice, by a barred attempt, or against a restored set. See `complete` for missing shards."""
        return not any(entry.faults for entry in self.inputs) and not any(entry.faults for entry in self.feeds)

    @property
    def complete(self) -> bool:
        return all(entry.complete for entry in self.inputs)

    def to_json(self) -> dict[str, Any]:
        feeds = {"feeds": [attrs.asdict(entry) for entry in self.feeds]} if self.feeds else {}
        inputs = [attrs.asdict(entry) for entry in self.inputs]
        return {"ok": self.ok, "complete": self.complete, "inputs": inputs, **feeds}

    def lines(self) -> list[str]:
        """Return the verdict for people, one fact a line."""
        lines = []
        for entry in self.inputs:
            of = "" if entry.total is None else f" of {entry.total:,}"
            records = "" if entry.records is None else f", {entry.records:,} records"
            lines.append(f"{entry.input}: {entry.counted:,}{of} shards counted exactly once{records}")
            lines += [
                f"  epoch {i}: {n:,} records"
                for i, n in enumerate(entry.epochs)
                if n is not None and len(entry.epochs) > 1
            ]
            if entry.taken_back:
                after = f"restored {', '.join(entry.restored)}: " if entry.restored else ""
                lines.append(f"  {after}{entry.taken_back:,} shards were taken back and counted again")
            if entry.in_parts:
                lines.append(f"  {entry.in_parts:,} shards were committed in parts")
            if entry.given_back:
                lines.append(
                    f"  {entry.given_back:,} shards were given back by attempts that had not committed what they made of them"
                )
            lines += [f"  dropped: {words}" for words in entry.dropped]
            lines += [f"  not known: {words}" for words in entry.trusted]
            lines += [f"  set aside, not counted: {place}" for place in entry.set_aside_places]
            lines += [f"  not counted: shards {first} to {end - 1}" for first, end in entry.missing]
            lines += [f"  fault: {fault}" for fault in entry.faults]
        for feed in self.feeds:
            end = "" if feed.end is None else f", each task {feed.end:,}"
            again = f", {feed.again:,} of them fed again after a loss" if feed.again else ""
            left = f", {feed.left:,} rows left over" if feed.left else ""
            lines.append(f"{feed.feed}: {feed.batches:,} batches read once{again}; {feed.rows:,} rows read{end}{left}")
            lines += [f"  fault: {fault}" for fault in feed.faults]
        return lines


def audit(events: Iterable[Recorded], tables: Mapping[str, ShardTable] | None = None) -> Audit:
    """Prove the accounting of every input in `events`.

    `tables`: inputs as they were listed (nothing done), for totals and record numbers.
    """
    books = {name: _Book(name, table) for name, table in (tables or {}).items()}
    written_off: dict[str, int] = {}
    sets: dict[str, Mapping[str, Any]] = {}
    feeds: dict[str, _Feed] = {}
    for event in whole(events):
        data = event.data
        if event.type == "attempt-written-off":
            written_off[data["task"]] = max(data["attempt"], written_off.get(data["task"], 0))
            for book in books.values():
                book.follow(event)
        elif event.type == "checkpoint-saved":
            sets[str(data["set"])] = data.get("marks") or {}
        elif event.type == "inputs-listed" and (checkpoint := data.get("checkpoint")):  # a set of an earlier job
            sets[str(checkpoint["set"])] = checkpoint.get("marks") or {}
        elif event.type in ("committers-named", "part-committed", "output-committed", "attempt-ended"):
            for book in books.values():
                book.follow(event)
        elif event.type == "rewound":
            for name, count in data.get("without", {}).items():
                books[name].trusted.append(passed_words(count, data["set"]))
        elif event.type == "state-begun":
            for book in books.values():
                book.begun(event)
        elif event.type in ("feed-read", "feed-ended"):
            role = data["role"] if event.type == "feed-ended" else data["task"].rpartition(":")[0]
            name = f"{role}.feed.{data['feed']}"
            feed = feeds.setdefault(name, _Feed(name))
            if event.type == "feed-ended":
                feed.end = data["rows"]
            else:
                feed.note(event, barred=data["attempt"] <= written_off.get(data["task"], 0))
        elif event.type in ("shards-done", "shards-returned", "shard-set-aside"):
            book = books.setdefault(data["input"], _Book(data["input"], None))
            if event.type == "shards-returned":
                book.returned(event, sets)
            elif event.type == "shard-set-aside":
                book.set_aside(event)
            else:
                book.done(event, barred=data["attempt"] <= written_off.get(data["task"], 0))
    return Audit(tuple(book.closed() for book in books.values()), tuple(feed.closed() for feed in feeds.values()))


class _Feed:
    """The account of one feed while the events are read. A partition is (round, partition)."""

    def __init__(self, name: str) -> None:
        self.name, self.end = name, None
        self._fed: dict[tuple[int, int], RangeSet] = {}
        self._read: dict[tuple[int, int], RangeSet] = {}
        self._rows: dict[tuple[str, int], tuple[int, int]] = {}  # by attempt: read and left over
        self._again = 0
        self._faults: list[str] = []

    def note(self, event: Recorded, *, barred: bool) -> None:
        data = event.data
        if barred:
            self._faults.append(
                f"event {event.n}: attempt {data['attempt']} of {data['task']} was written off before, and read"
            )
        self._rows[data["task"], data["attempt"]] = data["rows"], data.get("left", 0)
        for number, partition, first, end in data["fed"]:
            fed = self._fed.setdefault((number, partition), RangeSet())
            self._again += sum(b - a for a, b in fed.within(first, end))
            fed.add(first, end)
        for number, partition, first, end in data["read"]:
            read = self._read.setdefault((number, partition), RangeSet())
            where = f"of partition {partition} of round {number}"
            self._faults += [
                f"event {event.n}: batches {a} to {b - 1} {where} were read a second time"
                for a, b in read.within(first, end)
            ]
            if not self._fed.get((number, partition), RangeSet()).covers(first, end):
                self._faults.append(f"event {event.n}: batches {first} to {end - 1} {where} were read and never fed")
            read.add(first, end)

    def closed(self) -> FeedAudit:
        rows, left = (sum(counts) for counts in zip((0, 0), *self._rows.values(), strict=True))
        return FeedAudit(
            self.name, len({number for number, _ in self._fed}), sum(read.count for read in self._read.values()), self._again, rows, left,
            self.end, tuple(self._faults[:_FAULTS_SHOWN]),
        )  # fmt: skip


class _Book:
    """The account of one input while the events are read."""

    def __init__(self, name: str, table: ShardTable | None) -> None:
        self.name, self.table = name, table
        self.counted, self.aside = RangeSet(), RangeSet()
        self.places: list[str] = []  # of the shards that were set aside
        self.records = array("q")  # by number
        self.fixed: dict[int, int] | array[int] = array("q", [_UNKNOWN]) * table.count if table else {}
        self.taken_back = self.given_back = 0
        self.restored: list[str] = []
        # By (task, attempt): done, and in outputs that it has not committed; and those that its program keeps.
        self.pending: dict[tuple[str, int], RangeSet] = {}
        self.named: dict[tuple[str, int], RangeSet] = {}  # of attempts that are to commit
        self.entrusted: dict[tuple[str, int], int] = {}
        self.trusted: list[str] = []
        self.in_parts = 0
        self.trainings = Trainings()  # done, and in a state that the members of a training have
        self.lacking = RangeSet()  # not in the state with which a round began, and not returned yet
        self.faults: list[str] = []

    def done(self, event: Recorded, *, barred: bool) -> None:
        data = event.data
        if barred:
            self._fault(event, f"attempt {data['attempt']} of {data['task']} was written off before, and was counted")
        records = iter(data.get("records") or ())
        for first, end in data["ranges"]:
            for a, b in self.counted.within(first, end):
                self._fault(event, f"shards {a} to {b - 1} were counted a second time")
            for a, b in self.aside.within(first, end):
                self._fault(event, f"shards {a} to {b - 1} were set aside before, and were counted")
            if self.table and end > self.table.total:
                self._fault(event, f"shard {end - 1} is not one of the {self.table.total}")
                continue
            self.counted.add(first, end)
            if data.get("kept_by") == OUTPUTS:
                self.pending.setdefault((data["task"], data["attempt"]), RangeSet()).add(first, end)
            elif data.get("kept_by") == PROGRAM:
                self.entrusted[data["task"], data["attempt"]] = (
                    self.entrusted.get((data["task"], data["attempt"]), 0) + end - first
                )
            if end > len(self.records):
                self.records.extend(array("q", [_UNKNOWN]) * (end - len(self.records)))
            for number in range(first, end):
                count = next(records, None)
                self.records[number] = _UNKNOWN if count is None else count
                self._compare(event, number, count)

        if data.get("kept_by") == MEMBERS:
            self.trainings.count(data)

    def begun(self, event: Recorded) -> None:
        """Note that a round of a training begins: what its state lacks is to be returned."""
        name, number, step = (event.data[key] for key in ("training", "round", "step"))
        if not event.data["lost"]:
            self.lacking.update(self.trainings.of(name).beyond(step))
        self.trainings.begin(name, number, step)

    def set_aside(self, event: Recorded) -> None:
        ranges = RangeSet.from_json(event.data["ranges"])
        if counted := ranges.intersection(self.counted):
            self._fault(event, f"shards {counted.to_json()} were counted before, and were set aside")
        if (
            len(failed := {tuple(attempt) for attempt in event.data["failed"]}) < len(event.data["failed"])
            or not failed
        ):
            self._fault(event, f"shards {ranges.to_json()} were set aside, and an attempt is named twice, or none")
        self.aside.update(ranges)
        self.places.append(f"{place_words(event.data)}: {failed_words(event.data['failed'])} failed on it")

    def _compare(self, event: Recorded, number: int, count: int | None) -> None:
        if count is None or not self.table:
            return
        index = self.table.index(number)
        if self.fixed[index] == _UNKNOWN:
            self.fixed[index] = count
        elif self.fixed[index] != count:
            shard = self.table.shard(number)
            place, kind = (place_words(shard._asdict()), "table") if shard.kind == TABLE else (shard.path, "file")
            words = f"had {self.fixed[index]} records at first and {count} now: the {kind} was changed"
            self._fault(event, f"shard {number} ({place}) {words}")

    def returned(self, event: Recorded, sets: Mapping[str, Mapping[str, Any]]) -> None:
        name = str(event.data.get("set") or "")  # "": the programs began anew
        back = RangeSet.from_json(event.data["ranges"])
        if stray := back.difference(self.counted):
            self._fault(event, f"shards {stray.to_json()} were returned and had not been counted")
        self.counted.subtract(back)
        if "task" in event.data:
            pending = self.pending.get((event.data["task"], event.data["attempt"]), RangeSet())
            if other := back.difference(pending):
                self._fault(
                    event,
                    f"shards {other.to_json()} were given back by an attempt that had not done them, or had committed",
                )
            pending.subtract(back)
            self.given_back += back.count
            return
        in_state = self.trainings.of(event.data["training"]).shards.copy() if "training" in event.data else None
        if in_state is not None and (other := back.difference(in_state)):
            self._fault(event, f"shards {other.to_json()} were returned, and no state of members had them")
        self.trainings.take_back(back)
        self.lacking.subtract(back)
        for pending in self.pending.values():
            pending.subtract(back)
        self.taken_back += back.count
        if "step" in event.data:  # the training goes on
            return
        self.restored.append(name or "nothing")
        if name and name not in sets:
            self._fault(event, f"set {name} was restored and never recorded as whole")
            return
        seen = RangeSet.from_json(sets[name].get(self.name, []) if name else [])
        forgotten = (self.counted if in_state is None else in_state.difference(back)).difference(seen)
        if forgotten:
            self._fault(
                event, f"set {name or '(none)'} had not seen shards {forgotten.to_json()}, and they still count"
            )

    def follow(self, event: Recorded) -> None:
        """Follow an attempt to its commit or to another end."""
        data = event.data
        if event.type == "committers-named":
            for task, attempt in data["attempts"]:
                self.named[task, attempt] = self.pending.pop((task, attempt), RangeSet())
                self.entrusted.pop((task, attempt), None)
            return
        key = (data["task"], data["attempt"])
        if event.type == "part-committed":
            if kept := RangeSet.from_json(data["kept"].get(self.name, [])):
                self._keep(event, key, kept)
        elif event.type == "output-committed":
            self.named.pop(key, None)
        elif ranges := self.named.pop(key, None):
            self.pending[key] = ranges
        elif count := self.entrusted.pop(key, 0):
            self.trusted.append(trusted_words(*key, count))

    def _keep(self, event: Recorded, key: tuple[str, int], kept: RangeSet) -> None:
        pending = self.pending.get(key, RangeSet())
        if other := kept.difference(pending):
            self._fault(event, f"shards {other.to_json()} were committed in a part, and the attempt had not done them")
        pending.subtract(kept)
        self.in_parts += kept.count

    def _fault(self, event: Recorded, text: str) -> None:
        if len(self.faults) < _FAULTS_SHOWN:
            self.faults.append(f"event {event.n}: {text}")

    def closed(self) -> InputAudit:
        total = self.table.total if self.table else None
        missing = RangeSet([(0, total)]).difference(self.counted).difference(self.aside) if total else RangeSet()
        size = self.table.count if self.table else len(self.records) or 1
        epochs = [self._sum(first, first + size) for first in range(0, total or len(self.records), size or 1)]
        known = [n for n in epochs if n is not None]
        counted_without = self.lacking.intersection(self.counted)
        lacking = (
            [f"shards {counted_without.to_json()} count, and a training went on without them"]
            if counted_without
            else []
        )
        return InputAudit(
            input=self.name,
            total=total,
            counted=self.counted.count,
            records=sum(known) if len(known) == len(epochs) else None,
            epochs=tuple(epochs),
            missing=tuple(missing.ranges()),
            set_aside=self.aside.count,
            set_aside_places=tuple(self.places),
            taken_back=self.taken_back,
            restored=tuple(self.restored),
            in_parts=self.in_parts,
            given_back=self.given_back,
            dropped=tuple(
                f"what attempt {attempt} of {task} made of {ranges.count:,} shards: its outputs were not committed"
                for (task, attempt), ranges in self.pending.items()
                if ranges
            ),
            trusted=tuple(self.trusted),
            faults=(*self.faults, *lacking),
        )

    def _sum(self, first: int, end: int) -> int | None:
        records = 0
        for a, b in self.counted.within(first, end):
            part = self.records[a:b]
            if _UNKNOWN in part:
                return None
            records += sum(part)
        return records
