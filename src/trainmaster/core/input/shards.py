"""Exact accounting of one input that is read `as: shards`.

Files are cut into shards: byte ranges of lines (read by Hadoop's rule: a line belongs to the shard in which it
begins), ranges of chunks of a RecordIO file, row groups of a Parquet file, or a whole file where a format cannot be cut. A table of a
database stands for one file, and is cut into ranges of its key. An input may also be a number of records that only the program can read:
its shards are ranges of their indices. A shard has an *index* in the data and a *number* in the order of reading: number = epoch x shards
+ position, and a seeded permutation of each epoch maps positions to indexes. All books are kept in numbers, so that shards leased
together and done together stay one range, shuffled or not.

The table knows which shards are done, and follows from the log alone; `leases` knows who holds the others. Done and
returned ranges are events (barriers). A shard that is done counts no second time, however often it is reported. Each
event carries the *mark* (the number of journal entries) that follows it, so that applying an event twice changes
nothing and a missing one is noticed. A mark also names a moment: `marks(at)` are the shards done by then, which are
those that a checkpoint set has seen.

A shard that is done may still be *pending*: what an attempt made of it is in the outputs that the attempt has yet to commit (`kept_by` of
its event is OUTPUTS). Once it has committed, the shard is kept; where it ends without that, the shard is *lost*, and is returned.

A shard whose readers keep failing is *set aside*, in every epoch in which it is not done: it is over, and not counted. `failed` has the
attempts that failed on a shard before that, by its index, since it is the same bytes in every epoch.

The first report fixes the number of records of a shard; a later report that differs (the file or table was changed) is named
in its event.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from trainmaster.core.input.ranges import Range, RangeSet
from trainmaster.core.input.trainings import Trainings
from trainmaster.core.plain import Plain

LINES, ROWS, WHOLE = "lines", "rows", "whole"  # kinds: start and end are bytes, row groups, or mean nothing
RECORDS = "records"  # start and end are indices of records, and so is the size of a shard
# Kinds that are formats, which the job names or a file's ending shows: start and end are bytes.
JSONL, CSV, RECORDIO, TFRECORD = "jsonl", "csv", "recordio", "tfrecord"
NAMED = (JSONL, CSV, RECORDIO, TFRECORD)
TABLE = "table"  # start and end are keys
# The keeper of the work on a shard; "": a checkpoint, or the servers of its group.
OUTPUTS, PROGRAM, MEMBERS, SERVERS = "outputs", "program", "members", "servers"
NAMED_BY_PROGRAMS = frozenset({MEMBERS, SERVERS, OUTPUTS})
_UNCUTTABLE = (".gz", ".bz2", ".xz", ".zst", ".zip", ".parquet")
# Shards of an input whose size is ours to choose, and their bounds.
_WANTED, _SMALLEST, _LARGEST = (1024, 16 * 1024, 64 * 1024 * 1024)
_UNKNOWN = 2**32 - 1  # no record count fixed yet
_JOURNAL = 2**18  # entries kept; an older mark means that nothing is done, which is safe: all is read again


@attrs.frozen(slots=True, eq=False, repr=False)
class File(Plain):
    """A file of the input. `groups`: its row groups, where it is Parquet and they were counted.

    `kind`: the kind of its shards; "": by the file's ending. `cuts`: the offsets at which the shards of a RecordIO file begin; none: it is
    one shard. A table has its URL as path; its `cuts` are the keys at which its shards begin, and `size` is the key at which the last one
    ends; none: it is empty.
    """

    path: str
    size: int
    groups: int | None = None
    kind: str = ""
    cuts: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> File:
        path, size, *rest = row
        return cls(path, size, *rest[:2], *map(tuple, rest[2:]))

    def to_json(self) -> list[Any]:
        row = [self.path, self.size, self.groups]
        return [*row, self.kind, list(self.cuts)] if self.kind else row


@attrs.frozen(slots=True, eq=False, repr=False)
class Options(Plain):
    """The way an input is cut and read. `size`: bytes of a shard, or records of one of RECORDS; 0 lets the input's size decide."""

    size: int = 0
    epochs: int = 1
    shuffle: bool = False
    seed: int = 0


class Shard(NamedTuple):
    """One shard of one epoch, as it is leased."""

    number: int
    path: str
    kind: str
    start: int
    end: int


def place_words(shard: Mapping[str, Any]) -> str:
    """Return a shard's place in words, out of its `path`, `kind`, `start` and `end`: "data/a.csv, bytes 0 to 16,384"."""
    if shard["kind"] == LINES or shard["kind"] in NAMED:
        return f"{shard['path']}, bytes {shard['start']:,} to {shard['end']:,}"
    if shard["kind"] == TABLE:
        return f"{shard['path']}, keys {shard['start']:,} to {shard['end'] - 1:,}"
    if shard["kind"] == RECORDS:
        return f"{shard['path']}, records {shard['start']:,} to {shard['end']:,}"
    return f"{shard['path']}, row group {shard['start']}" if shard["kind"] == ROWS else str(shard["path"])


def trusted_words(task: str, attempt: int, count: int) -> str:
    """Say what became of the shards of an attempt that ended early, where its program itself keeps what it makes of them."""
    return f"what attempt {attempt} of {task} made of {count:,} shards is kept only if its program has stored it"


def passed_words(count: int, checkpoint_set: Any) -> str:
    """Say of which shards a group goes on without what was made of them, since those that read them have ended well."""
    begin = "nothing" if checkpoint_set is None else f"checkpoint set {checkpoint_set}"
    return f"{count:,} shards whose readers have ended are not in {begin}, with which their group began again"


def failed_words(failed: Iterable[Sequence[Any]]) -> str:
    """Name the tasks whose attempts ([task, attempt]) failed on a shard: "worker:0 twice, worker:1"."""
    counts = Counter(str(attempt[0]) for attempt in failed)
    times = {1: "", 2: " twice"}
    return ", ".join(f"{task}{times.get(count, f' {count} times')}" for task, count in counts.items())


class ShardTable:
    """The shards of one input, and which of them are done. Created by `make` or `from_snapshot`."""

    def __init__(self, files: Sequence[File], options: Options, name: str) -> None:
        self.name, self.files, self.options = name, tuple(files), options
        self._size = options.size or fitting_size(sum(file.size for file in self.files if _is_divided(file)))
        self._firsts = array("q", [0])  # index of each file's first shard, and last the number of all
        for file in self.files:
            self._firsts.append(self._firsts[-1] + _pieces(file, self._size))
        self.count = self._firsts[-1]  # shards of an epoch
        self.total = self.count * options.epochs
        self._orders: dict[int, array[int]] = {}
        self._done, self._aside = RangeSet(), RangeSet()
        self.pending: dict[str, RangeSet] = {}  # by task: done by its attempt, which has not committed yet
        self.lost: dict[str, tuple[int, RangeSet]] = {}  # by task: pending as this attempt ended, not returned yet
        self._trusted: Counter[str] = Counter()  # by task: done by its attempt, whose program keeps the work on them
        self.trainings = Trainings()  # done, and in a state that the members of a training have
        self._owed = RangeSet()  # returned since they were lost, and not done again
        self._failed: dict[int, list[list[Any]]] = {}  # index -> [task, attempt] of those that failed on it
        self._suspects = RangeSet()  # the numbers of those indexes
        self.set_aside: list[dict[str, Any]] = []  # the shards set aside, as their events name them, and when
        self._records = array("I", [_UNKNOWN]) * self.count  # by index
        self._journal_firsts, self._journal_ends = array("q"), array("q")  # returned ranges are kept inverted (~n)
        self._forgotten = 0  # journal entries dropped

    @classmethod
    def make(
        cls, files: Iterable[File | Sequence[Any]], options: Options | None = None, *, name: str = ""
    ) -> ShardTable:
        """Create a table of nothing done. `files` in the order in which they were listed: `File`s, or sequences of their fields."""
        listed = [file if isinstance(file, File) else File.from_json(file) for file in files]
        return cls(listed, options or Options(), name)

    @classmethod
    def from_listing(cls, listing: Mapping[str, Any], *, name: str = "") -> ShardTable:
        """Create a table of nothing done, from the data that `listing()` returns."""
        return cls.make(listing["files"], Options(**listing["shards"]), name=listing.get("input", name))

    def listing(self) -> dict[str, Any]:
        """Return the input as it was listed and cut, in JSON form: `input`, `files` (of `File.to_json`) and `shards` (the options)."""
        files = [file.to_json() for file in self.files]
        return {"input": self.name, "files": files, "shards": {**attrs.asdict(self.options), "size": self._size}}

    # -- reading --

    @property
    def finished(self) -> bool:
        """Tell whether every shard of every epoch is done or set aside."""
        return self._done.count + self._aside.count == self.total

    @property
    def figures(self) -> dict[str, int]:
        return {"done": self._done.count, "total": self.total, "aside": self._aside.count}

    @property
    def mark(self) -> int:
        """Return the mark of this moment: it rises with every range done or returned, and follows from the applied events alone."""
        return self._forgotten + len(self._journal_firsts)

    def marks(self, at: int | None = None) -> list[list[int]]:
        """Return the ranges that were done at the moment `at` (None: now); none for a moment not known any more, or not yet."""
        done = self._done.copy()
        if at is None:
            return done.to_json()
        if not self._forgotten <= at <= self.mark:
            return []
        for i in range(len(self._journal_firsts) - 1, at - self._forgotten - 1, -1):
            first, end = self._journal_firsts[i], self._journal_ends[i]
            if first < 0:
                done.add(~first, ~end)
            else:
                done.discard(first, end)
        return done.to_json()

    def index(self, number: int) -> int:
        """Return the index in the data of the shard `number`."""
        epoch, position = divmod(number, self.count)
        return self._order(epoch)[position] if self.options.shuffle else position

    def shard(self, number: int) -> Shard:
        index = self.index(number)
        at = bisect_right(self._firsts, index) - 1
        file, piece = self.files[at], index - self._firsts[at]
        kind = _kind(file)
        if _is_divided(file):
            return Shard(number, file.path, kind, piece * self._size, min(file.size, (piece + 1) * self._size))
        if kind in NAMED or kind == TABLE:
            borders = (*(file.cuts or (0,)), file.size)
            return Shard(number, file.path, kind, borders[piece], borders[piece + 1])
        return Shard(number, file.path, kind, piece, piece + 1)

    @property
    def owed(self) -> int:
        """Return the number of shards that were lost with attempts, and are not done again."""
        return self._owed.count

    def remaining(self) -> RangeSet:
        """Return the shards that are neither done nor set aside."""
        return RangeSet([(0, self.total)]).difference(self._done).difference(self._aside)

    @property
    def suspects(self) -> RangeSet:
        """Return the numbers of the shards on which an attempt has failed, those that are over too. For reading alone."""
        return self._suspects

    def failed(self, number: int) -> list[list[Any]]:
        """Return the attempts, as [task, attempt], that failed while they were reading the shard."""
        return list(self._failed.get(self.index(number), ()))

    def is_over(self, number: int) -> bool:
        """Tell whether the shard is done, set aside, or none of the input."""
        return not 0 <= number < self.total or number in self._done or number in self._aside

    def rest_of(self, number: int) -> RangeSet:
        """Return the shards that are the same part of the data, in any epoch, and are not over."""
        return self._numbers(self.index(number)).difference(self._done).difference(self._aside)

    def answer(self, shards: Sequence[Shard]) -> dict[str, Any]:
        """Return the answer to an agent that asked for shards: the leased ones in JSON form, each path once."""
        places: dict[tuple[str, str], int] = {}
        rows = [[s.number, places.setdefault((s.path, s.kind), len(places)), s.start, s.end] for s in shards]
        return {
            "files": [list(place) for place in places],
            "shards": rows,
            "count": self.count,
            "mark": self.mark,
            "end": self.finished,
        }

    # -- counting --

    def done(
        self, task: str, attempt: int, ranges: Any, records: Any = None, kept_by: str = "", states: Any = ()
    ) -> dict[str, Any] | None:
        """Return the part of a report that counts, as the payload of `shards-done`; None where nothing does. `apply` counts it.

        `ranges`: JSON form. `records`: the number of records of each shard (None: unknown), in the order of `ranges`. `kept_by`: who keeps
        what was made of them. `states`: [training, round, step, ranges], where that is the state of a training's members. Raises ValueError
        on other forms.
        """
        reported = RangeSet.from_json(ranges)
        counts = records_by_number(ranges, reported, records)
        accepted = reported.intersection(RangeSet([(0, self.total)]))
        accepted.subtract(accepted.intersection(self._done))
        accepted.subtract(accepted.intersection(self._aside))
        if not accepted:
            return None
        payload: dict[str, Any] = {
            "input": self.name,
            "ranges": accepted.to_json(),
            "task": task,
            "attempt": attempt,
        }
        payload["records"] = None if counts is None else [counts[number] for number in accepted]
        if differing := self._differing(payload):
            payload["differing"] = differing  # [number, records at first, records now]
        if kept_by:
            payload["kept_by"] = kept_by
        if states:
            parts = [(state, RangeSet.from_json(numbers).intersection(accepted)) for *state, numbers in states]
            payload["states"] = [[*state, part.to_json()] for state, part in parts if part]
        payload["mark"] = self.mark + len(accepted)
        return payload

    def restore(self, marks: Any, checkpoint: Any = "") -> dict[str, Any]:
        """Return the shards done later than a restored checkpoint set, as the payload of `shards-returned`.

        `marks`: the shards that the set has seen, as JSON ranges. `apply` then takes the others back. Programs keep what they hold.
        """
        returned = self._done.difference(RangeSet.from_json(marks))
        return {"input": self.name, "ranges": returned.to_json(), "set": checkpoint, "mark": self.mark + len(returned)}

    def lose_members(self, training: str, marks: Any, checkpoint: int | None) -> dict[str, Any]:
        """Return the shards that were in the state of a training's members alone, as the payload of `shards-returned`.

        `marks`: the shards, as JSON ranges, that the set `checkpoint` has seen, with which a new training begins; None: it begins anew.
        """
        returned = self.trainings.of(training).shards.difference(RangeSet.from_json(marks))
        return self._missing(training, returned) | {"set": checkpoint}

    def go_back(self, training: str, step: int) -> dict[str, Any]:
        """Return the shards that are not in the state of a step, with which a training goes on, as the payload of `shards-returned`."""
        return self._missing(training, self.trainings.of(training).beyond(step)) | {"step": step}

    def supersede(self, done: Mapping[str, Any]) -> dict[str, Any]:
        """Return the shards of a payload of `shards-done` that no state has, as the payload of the `shards-returned` that follows it."""
        returned = self.trainings.superseded(done)
        name = next((row[0] for row in done.get("states", ())), "")
        return self._missing(name, returned) | {"step": 0, "mark": done["mark"] + len(returned)}

    def _missing(self, training: str, returned: RangeSet) -> dict[str, Any]:
        return {
            "input": self.name, "ranges": returned.to_json(), "set": None, "kept_by": MEMBERS, "training": training,
            "mark": self.mark + len(returned),
        }  # fmt: skip

    def give_back(self, task: str) -> dict[str, Any]:
        """Return the shards that were lost with an attempt of the task, as the payload of `shards-returned`."""
        attempt, ranges = self.lost[task]
        return {
            "input": self.name, "ranges": ranges.to_json(), "set": None, "task": task, "attempt": attempt,
            "mark": self.mark + len(ranges),
        }  # fmt: skip

    def held_of(self, task: str, ranges: Any) -> list[list[int]]:
        """Return those of `ranges`, in JSON form, that the task's attempt has done and not committed. Raises ValueError on other forms."""
        return RangeSet.from_json(ranges).intersection(self.pending.get(task, RangeSet())).to_json()

    def keep(self, task: str, ranges: Any = None) -> None:
        """Note that the task's attempt has committed what it made of these shards, or (None) has ended well and committed all."""
        if ranges is not None:
            self.pending[task].subtract(RangeSet.from_json(ranges))
            if self.pending[task]:
                return
        self.pending.pop(task, None)
        if ranges is None:
            self._trusted.pop(task, None)

    def lose(self, task: str, attempt: int) -> int:
        """Note that an attempt of the task has ended otherwise. Return how many shards it did whose work its program keeps."""
        if (ranges := self.pending.pop(task, None)) is not None:
            self.lost[task] = attempt, ranges
        return self._trusted.pop(task, 0)

    def apply(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Apply an event, new or out of the log. One applied already (its mark is not ahead) changes nothing.

        Raises ValueError where an event before it is missing.
        """
        if payload.get("input") != self.name:
            return
        if kind == "shard-failed":
            self._note_failure(self.index(payload["number"]), [payload["task"], payload["attempt"]])
        elif kind == "shard-set-aside":
            self._set_aside(payload)
        if kind not in ("shards-done", "shards-returned") or payload["mark"] <= self.mark:
            return
        if payload["mark"] != self.mark + len(payload["ranges"]):
            raise ValueError(f"input {self.name}: events are missing between mark {self.mark} and {payload['mark']}")
        if kind == "shards-done":
            self._count(payload)
        else:
            self._return(RangeSet.from_json(payload["ranges"]), payload.get("task"))

    # -- snapshot --

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the table after its events, in JSON form."""
        return {
            "listing": self.listing(),
            "done": self._done.to_json(),
            "records": _packed(self._records),
            "journal": [_packed(self._journal_firsts), _packed(self._journal_ends), self._forgotten],
            "failed": [[index, attempts] for index, attempts in self._failed.items()],
            "aside": self.set_aside,
            "pending": {task: ranges.to_json() for task, ranges in self.pending.items()},
            "lost": {task: [attempt, ranges.to_json()] for task, (attempt, ranges) in self.lost.items()},
            "owed": self._owed.to_json(),
            "trainings": self.trainings.to_json(),
            "trusted": dict(self._trusted),
        }

    @classmethod
    def from_snapshot(cls, value: Mapping[str, Any]) -> ShardTable:
        table = cls.from_listing(value["listing"])
        table._done = RangeSet.from_json(value["done"])
        table._records = _unpacked("I", value["records"])
        for index, attempts in value.get("failed", ()):
            for attempt in attempts:
                table._note_failure(index, attempt)
        for event in value.get("aside", ()):
            table._set_aside(event)
        for task, ranges in value.get("pending", {}).items():
            table.pending[task] = RangeSet.from_json(ranges)
        for task, (attempt, ranges) in value.get("lost", {}).items():
            table.lost[task] = attempt, RangeSet.from_json(ranges)
        table._owed = RangeSet.from_json(value.get("owed", []))
        table.trainings = Trainings.from_json(value.get("trainings", {}))
        table._trusted.update(value.get("trusted", {}))
        firsts, ends, forgotten = value["journal"]
        table._journal_firsts, table._journal_ends, table._forgotten = (
            _unpacked("q", firsts),
            _unpacked("q", ends),
            forgotten,
        )
        return table

    # -- private --

    def _count(self, payload: Mapping[str, Any]) -> None:
        """Count the payload's ranges as done, and fix their records."""
        ranges = [(first, end) for first, end in payload["ranges"]]
        for first, end in ranges:
            self._done.add(first, end)
            self._owed.discard(first, end)
        if payload.get("kept_by") == OUTPUTS:
            self.pending.setdefault(payload["task"], RangeSet()).update(RangeSet(ranges))
        elif payload.get("kept_by") == PROGRAM:
            self._trusted[payload["task"]] += sum(end - first for first, end in ranges)
        elif payload.get("kept_by") == MEMBERS:
            self.trainings.count(payload)
        self._note(ranges)
        for index, _, records in self._counted(payload):
            if self._records[index] == _UNKNOWN:
                self._records[index] = records

    def _note_failure(self, index: int, attempt: list[Any]) -> None:
        attempts = self._failed.setdefault(index, [])
        if not attempts:
            self._suspects.update(self._numbers(index))
        if attempt not in attempts:
            attempts.append(attempt)

    def _set_aside(self, event: Mapping[str, Any]) -> None:
        ranges = RangeSet.from_json(event["ranges"]).difference(self._aside)
        if ranges:
            self._aside.update(ranges)
            names = ("input", "number", "path", "kind", "start", "end", "ranges", "failed", "at")
            self.set_aside.append({name: event[name] for name in names})

    def _numbers(self, index: int) -> RangeSet:
        """Return the numbers that the part of the data with this index has in all epochs."""
        epochs = range(self.options.epochs)
        if not self.options.shuffle:
            return RangeSet.of(epoch * self.count + index for epoch in epochs)
        return RangeSet.of(epoch * self.count + self._order(epoch).index(index) for epoch in epochs)

    def _differing(self, payload: Mapping[str, Any]) -> list[list[int]]:
        fixed = self._records
        counted = self._counted(payload)
        return [
            [number, fixed[index], records]
            for index, number, records in counted
            if fixed[index] not in (records, _UNKNOWN)
        ]

    def _counted(self, payload: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
        """Yield (index, number, records) of each shard whose records the payload counts."""
        numbers = (number for first, end in payload["ranges"] for number in range(first, end))
        for number, records in zip(numbers, payload.get("records") or (), strict=False):
            if records is not None:
                yield self.index(number), number, records

    def _return(self, ranges: RangeSet, lost_with: str | None) -> None:
        """Take back ranges that are done: those lost with an attempt of the task `lost_with`, or (None) those that a restore takes back."""
        self._done.subtract(ranges)
        self.trainings.take_back(ranges)
        if lost_with is not None:
            self.lost.pop(lost_with, None)
            self._owed.update(ranges)
        else:
            for task, pending in [*self.pending.items()]:
                pending.subtract(ranges)
                if not pending:
                    del self.pending[task]
            for task, (_, lost) in [*self.lost.items()]:
                lost.subtract(ranges)
                if not lost:
                    del self.lost[task]
        self._note([(~first, ~end) for first, end in ranges.ranges()])

    def _note(self, entries: list[Range]) -> None:
        self._journal_firsts.extend(first for first, _ in entries)
        self._journal_ends.extend(end for _, end in entries)
        if len(self._journal_firsts) > _JOURNAL:
            dropped = len(self._journal_firsts) - _JOURNAL * 3 // 4
            del self._journal_firsts[:dropped]
            del self._journal_ends[:dropped]
            self._forgotten += dropped

    def _order(self, epoch: int) -> array[int]:
        """Return the permutation of `epoch`. It uses `random()` alone, the one method whose sequence Python promises to keep."""
        if epoch not in self._orders:
            if len(self._orders) > 1:
                del self._orders[min(self._orders)]
            order, draw = array("I", range(self.count)), random.Random(f"{self.options.seed}/{epoch}").random
            for i in range(self.count - 1, 0, -1):  # Fisher and Yates
                j = int(draw() * (i + 1))
                order[i], order[j] = order[j], order[i]
            self._orders[epoch] = order
        return self._orders[epoch]


def records_by_number(ranges: Any, reported: RangeSet, records: Any) -> dict[int, int | None] | None:
    """Return shard number -> records of a report, None where it counts none. Raises ValueError where the two do not fit.

    `ranges`: JSON form, and `reported` as a set; `records`: in the order of `ranges`.
    """
    if records is None:
        return None
    if (
        not isinstance(records, list)
        or len(records) != reported.count
        or sum(b - a for a, b in ranges) != reported.count
    ):
        raise ValueError("one record count a shard is due")
    if not all(count is None or (type(count) is int and 0 <= count < _UNKNOWN) for count in records):
        raise ValueError("a record count is a whole number")
    return dict(zip((number for first, end in ranges for number in range(first, end)), records, strict=True))


def _kind(file: File) -> str:
    if file.kind:
        return file.kind
    if file.groups is not None:
        return ROWS
    return WHOLE if file.path.lower().endswith(_UNCUTTABLE) else LINES


def _is_divided(file: File) -> bool:
    """Tell whether the file may be cut at any byte, or record."""
    return _kind(file) in (LINES, JSONL, RECORDS) and not file.path.lower().endswith(_UNCUTTABLE)


def _pieces(file: File, size: int) -> int:
    kind = _kind(file)
    if kind == ROWS:
        return file.groups or 0
    if _is_divided(file):
        return -(-file.size // size)
    return len(file.cuts) if kind == TABLE else len(file.cuts) or min(file.size, 1)


def fitting_size(amount: int) -> int:
    """Return a power of two that cuts `amount` bytes into about `_WANTED` shards."""
    shard_size = amount // _WANTED
    return max(_SMALLEST, min(_LARGEST, 1 << max(shard_size - 1, 0).bit_length()))


def _packed(numbers: array[int]) -> str:
    import base64
    import sys
    import zlib

    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return base64.b64encode(zlib.compress(numbers.tobytes(), 1)).decode()


def _unpacked(code: str, text: str) -> array[int]:
    import base64
    import sys
    import zlib

    numbers: array[int] = array(code)
    numbers.frombytes(zlib.decompress(base64.b64decode(text)))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
