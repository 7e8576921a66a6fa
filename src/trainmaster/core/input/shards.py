"""Exact accounting of one input that is read `as: shards`.

Files are cut into shards: byte ranges of lines (read by Hadoop's rule: a line belongs to the shard in which it
begins), row groups of a Parquet file, or a whole file where a format cannot be cut. A shard has an *index* in the
data and a *number* in the order of reading: number = epoch x shards + position, and a seeded permutation of each
epoch maps positions to indexes. All books are kept in numbers, so that what was leased together and done together
stays one range, shuffled or not.

Every number is in exactly one of three places: free, held by one holder (task, attempt), or done:

    free --lease--> held --done--> done          held --write off, give back--> free          done --restore--> free

Only what is held by a holder may be done by it, so a report that comes twice, late, or from an attempt that was
written off counts nothing. Done and returned ranges are events (barriers); leases are not: a restarted master knows
what is done from the log, and leases nothing until each holder it was told to `expect` has said what it holds, or
was written off. Between the events of a table no number is lost: each carries the *mark* (the number of journal
entries) that follows it, so that applying an event twice changes nothing and a missing one is noticed. A mark also
names a moment: `marks(at)` is what was done then, which is what a checkpoint set has seen.

How many records a shard has is fixed by the first report; a later report that differs (the file was changed) is
named in its event.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from trainmaster.core.input.ranges import Range, RangeSet
from trainmaster.core.plain import Plain

Holder = tuple[str, int]  # a task and the number of its attempt

LINES, ROWS, WHOLE = "lines", "rows", "whole"  # kinds: start and end are bytes, row groups, or mean nothing
_UNCUTTABLE = (".gz", ".bz2", ".xz", ".zst", ".zip", ".parquet")
# Shards of an input whose size is ours to choose, and their bounds.
_WANTED, _SMALLEST, _LARGEST = (1024, 16 * 1024, 64 * 1024 * 1024)
_UNKNOWN = 2**32 - 1  # no record count fixed yet
_JOURNAL = 2**18  # entries kept; a mark older than them stands for nothing done, which is safe: all is read again


@attrs.frozen(slots=True, eq=False, repr=False)
class File(Plain):
    """A file of the input. `groups`: its row groups, where it is Parquet and they were counted."""

    path: str
    size: int
    groups: int | None = None


@attrs.frozen(slots=True, eq=False, repr=False)
class Options(Plain):
    """How an input is cut and read. `size`: bytes of a shard; 0 lets the input's size decide."""

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


class ShardTable:
    """What of one input is free, held and done. Made by `make` or `from_snapshot`."""

    def __init__(self, files: Sequence[File], options: Options, name: str) -> None:
        self.name, self.files, self.options = name, tuple(files), options
        self._size = options.size or _fitting_size(files)
        self._firsts = array("q", [0])  # index of each file's first shard, and behind it the number of all
        for file in self.files:
            self._firsts.append(self._firsts[-1] + _pieces(file, self._size))
        self.count = self._firsts[-1]  # shards of an epoch
        self.total = self.count * options.epochs
        self._orders: dict[int, array[int]] = {}
        self._free = RangeSet([(0, self.total)])
        self._held: dict[Holder, RangeSet] = {}
        self._expected: set[Holder] = set()
        self._off: dict[str, int] = {}  # task -> its last attempt that was written off
        self._done = RangeSet()
        self._records = array("I", [_UNKNOWN]) * self.count  # by index
        self._journal_firsts, self._journal_ends = array("q"), array("q")  # returned ranges are kept inverted (~n)
        self._forgotten = 0  # journal entries dropped

    @classmethod
    def make(
        cls, files: Iterable[File | Sequence[Any]], options: Options | None = None, *, name: str = ""
    ) -> ShardTable:
        """A table of nothing done. `files` in the order in which they were listed: `File`s, or (path, size[, groups])."""
        listed = [file if isinstance(file, File) else File(*file) for file in files]
        return cls(listed, options or Options(), name)

    @classmethod
    def from_listing(cls, listing: Mapping[str, Any], *, name: str = "") -> ShardTable:
        """A table of nothing done, from what `listing()` gave."""
        return cls.make(listing["files"], Options(**listing["shards"]), name=listing.get("input", name))

    def listing(self) -> dict[str, Any]:
        """The input as it was listed and cut, in JSON form: `input`, `files` (path, size, row groups) and `shards` (the options)."""
        files = [list(attrs.astuple(file)) for file in self.files]
        return {"input": self.name, "files": files, "shards": {**attrs.asdict(self.options), "size": self._size}}

    # -- what it says --

    @property
    def finished(self) -> bool:
        """Whether every shard of every epoch is done."""
        return self._done.count == self.total

    @property
    def figures(self) -> dict[str, int]:
        held = sum(ranges.count for ranges in self._held.values())
        return {"done": self._done.count, "held": held, "free": self._free.count, "total": self.total}

    @property
    def mark(self) -> int:
        """This moment: rises with every range done or returned, the same for whoever applied the same events."""
        return self._forgotten + len(self._journal_firsts)

    def marks(self, at: int | None = None) -> list[list[int]]:
        """The ranges that were done at the moment `at` (now, where None). Of a moment not known any more, or not yet, none."""
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
        """Which shard of the data `number` is."""
        epoch, position = divmod(number, self.count)
        return self._order(epoch)[position] if self.options.shuffle else position

    def shard(self, number: int) -> Shard:
        index = self.index(number)
        at = bisect_right(self._firsts, index) - 1
        file, piece = self.files[at], index - self._firsts[at]
        kind = _kind(file)
        if kind == LINES:
            return Shard(number, file.path, kind, piece * self._size, min(file.size, (piece + 1) * self._size))
        return Shard(number, file.path, kind, piece, piece + 1)

    # -- what happens to it --

    def lease(self, holder: Holder, want: int) -> list[Shard]:
        """Up to `want` shards for `holder`, the lowest free numbers; none while somebody may still hold them unknown to us."""
        if self._expected or want < 1 or not self._admit(holder):
            return []
        held = self._held.setdefault(holder, RangeSet())
        fair = self._free.count // (2 * len(self._held))  # guided self-scheduling: batches shrink near the end
        leased = []
        for first, end in self._free.take(max(1, min(want, fair))):
            held.add(first, end)
            leased += [self.shard(number) for number in range(first, end)]
        return leased

    def answer(self, shards: Sequence[Shard]) -> dict[str, Any]:
        """What an agent is told in answer to its ask: the leased shards in JSON form, each path once."""
        places: dict[tuple[str, str], int] = {}
        rows = [[s.number, places.setdefault((s.path, s.kind), len(places)), s.start, s.end] for s in shards]
        return {
            "files": [list(place) for place in places],
            "shards": rows,
            "count": self.count,
            "mark": self.mark,
            "end": self.finished,
        }

    def done(self, holder: Holder, ranges: Any, records: Any = None) -> dict[str, Any] | None:
        """What of a report of `holder` counts, as the payload of `shards-done`; None where nothing does. `apply` then counts it.

        `ranges`: JSON form. `records`: how many records each shard had (None: unknown), in the order of `ranges`. Raises ValueError on
        what has not these forms.
        """
        told = RangeSet.from_json(ranges)
        counts = _by_number(ranges, told, records)
        accepted = told.intersection(self._held.get(holder, RangeSet()))
        if holder in self._expected:  # it may report before it says what it holds
            accepted.update(told.intersection(self._free))
        if not accepted:
            return None
        payload: dict[str, Any] = {
            "input": self.name,
            "ranges": accepted.to_json(),
            "task": holder[0],
            "attempt": holder[1],
        }
        payload["records"] = None if counts is None else [counts[number] for number in accepted]
        if differing := self._differing(payload):
            payload["differing"] = differing  # [number, records at first, records now]
        payload["mark"] = self.mark + len(accepted)
        return payload

    def give_back(self, holder: Holder, ranges: Any) -> None:
        """`holder` will not read these after all."""
        if holder in self._held:
            self._release(holder, RangeSet.from_json(ranges).intersection(self._held[holder]))

    def write_off(self, holder: Holder) -> None:
        """`holder`, and every earlier attempt of its task, counts nothing from now on; what they held is free."""
        task, attempt = holder
        self._off[task] = max(attempt, self._off.get(task, 0))
        for other in [other for other in self._held if other[0] == task and other[1] <= attempt]:
            self._release(other, self._held[other].copy())
            del self._held[other]
        self._expected -= {other for other in self._expected if other[0] == task and other[1] <= attempt}

    def expect(self, holders: Collection[Holder]) -> None:
        """A restarted master: these may hold leases of the master before. Nothing is leased until each said so or was written off."""
        self._expected |= {holder for holder in holders if self._off.get(holder[0], 0) < holder[1]}

    def hold(self, holder: Holder, ranges: Any) -> list[list[int]]:
        """`holder` says that it holds exactly these (on every connection anew). Returns those that it must drop: done, or another's."""
        told = RangeSet.from_json(ranges)
        # Whichever attempt of the task was expected: who tells this has the task's one container, and no other may hold anything.
        self._expected -= {other for other in self._expected if other[0] == holder[0]}
        if not self._admit(holder):
            return told.to_json()
        held = self._held.setdefault(holder, RangeSet())
        self._release(holder, held.difference(told))  # an answer of ours was lost on the way
        taken = told.intersection(self._free)
        self._free.subtract(taken)
        held.update(taken)
        return told.difference(held).to_json()

    def restore(self, marks: Any, checkpoint: Any = "") -> dict[str, Any]:
        """A checkpoint set that has seen `marks` (JSON ranges) is restored: what was done later, as the payload of `shards-returned`.

        `apply` then frees it. What programs still hold stays theirs.
        """
        returned = self._done.difference(RangeSet.from_json(marks))
        return {"input": self.name, "ranges": returned.to_json(), "set": checkpoint, "mark": self.mark + len(returned)}

    def apply(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Take in an event, new or out of the log. One that is in already (its mark is not ahead) changes nothing.

        Raises ValueError where an event before it is missing.
        """
        if (
            kind not in ("shards-done", "shards-returned")
            or payload.get("input") != self.name
            or payload["mark"] <= self.mark
        ):
            return
        if payload["mark"] != self.mark + len(payload["ranges"]):
            raise ValueError(f"input {self.name}: events are missing between mark {self.mark} and {payload['mark']}")
        if kind == "shards-done":
            self._count(payload)
        else:
            self._return(RangeSet.from_json(payload["ranges"]))

    # -- as a snapshot --

    def snapshot(self) -> dict[str, Any]:
        """All that the events have made of it, in JSON form. Leases are not in it."""
        return {
            "listing": self.listing(),
            "done": self._done.to_json(),
            "records": _packed(self._records),
            "journal": [_packed(self._journal_firsts), _packed(self._journal_ends), self._forgotten],
            "off": dict(self._off),
        }

    @classmethod
    def from_snapshot(cls, value: Mapping[str, Any]) -> ShardTable:
        table = cls.from_listing(value["listing"])
        table._done = RangeSet.from_json(value["done"])
        table._free.subtract(table._done)
        table._records = _unpacked("I", value["records"])
        firsts, ends, forgotten = value["journal"]
        table._journal_firsts, table._journal_ends, table._forgotten = (
            _unpacked("q", firsts),
            _unpacked("q", ends),
            forgotten,
        )
        table._off = dict(value["off"])
        return table

    # -- below: how --

    def _admit(self, holder: Holder) -> bool:
        task, attempt = holder
        if attempt <= self._off.get(task, 0):
            return False
        if holder not in self._held and any(other[0] == task for other in self._held):
            if any(other[0] == task and other[1] > attempt for other in self._held):
                return False
            self.write_off((task, attempt - 1))  # a task has one living attempt
        return True

    def _release(self, holder: Holder, ranges: RangeSet) -> None:
        self._held[holder].subtract(ranges)
        self._free.update(ranges)

    def _count(self, payload: Mapping[str, Any]) -> None:
        """Put the payload's ranges among the done, whoever held them, and fix their records."""
        ranges = [(first, end) for first, end in payload["ranges"]]
        holder = self._held.get((payload["task"], payload["attempt"]))
        for first, end in ranges:
            self._done.add(first, end)
            if holder is not None and holder.covers(first, end):
                holder.discard(first, end)
                continue
            self._free.discard(first, end)  # an event of the master before
            for held in self._held.values():
                held.discard(first, end)
        self._note(ranges)
        for index, _, records in self._counted(payload):
            if self._records[index] == _UNKNOWN:
                self._records[index] = records

    def _differing(self, payload: Mapping[str, Any]) -> list[list[int]]:
        fixed = self._records
        counted = self._counted(payload)
        return [
            [number, fixed[index], records]
            for index, number, records in counted
            if fixed[index] not in (records, _UNKNOWN)
        ]

    def _counted(self, payload: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
        """(index, number, records) of each shard that the payload counts the records of."""
        numbers = (number for first, end in payload["ranges"] for number in range(first, end))
        for number, records in zip(numbers, payload.get("records") or (), strict=False):
            if records is not None:
                yield self.index(number), number, records

    def _return(self, ranges: RangeSet) -> None:
        self._done.subtract(ranges)
        self._free.update(ranges)
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
        """The permutation of `epoch`. Made of `random()` alone, the one method whose sequence Python promises to keep."""
        if epoch not in self._orders:
            if len(self._orders) > 1:
                del self._orders[min(self._orders)]
            order, draw = array("I", range(self.count)), random.Random(f"{self.options.seed}/{epoch}").random
            for i in range(self.count - 1, 0, -1):  # Fisher and Yates
                j = int(draw() * (i + 1))
                order[i], order[j] = order[j], order[i]
            self._orders[epoch] = order
        return self._orders[epoch]


def _kind(file: File) -> str:
    if file.groups is not None:
        return ROWS
    return WHOLE if file.path.lower().endswith(_UNCUTTABLE) else LINES


def _pieces(file: File, size: int) -> int:
    kind = _kind(file)
    if kind == ROWS:
        return file.groups or 0
    return -(-file.size // size) if kind == LINES else min(file.size, 1)


def _fitting_size(files: Iterable[File]) -> int:
    """A power of two that cuts the input into about `_WANTED` shards."""
    wanted = sum(file.size for file in files if _kind(file) == LINES) // _WANTED
    return max(_SMALLEST, min(_LARGEST, 1 << max(wanted - 1, 0).bit_length()))


def _by_number(ranges: Any, told: RangeSet, records: Any) -> dict[int, int | None] | None:
    if records is None:
        return None
    if not isinstance(records, list) or len(records) != told.count or sum(b - a for a, b in ranges) != told.count:
        raise ValueError("one record count a shard is due")
    if not all(count is None or (type(count) is int and 0 <= count < _UNKNOWN) for count in records):
        raise ValueError("a record count is a whole number")
    return dict(zip((number for first, end in ranges for number in range(first, end)), records, strict=True))


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
