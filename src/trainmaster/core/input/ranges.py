"""Compact sets of whole numbers, kept as ranges.

A range [first, end) is half open, as Python's are. A set holds sorted, disjoint ranges that do not even touch, in two arrays of 64-bit
integers: a million consecutive numbers are one range, a million scattered ones 16 MB. Every operation finds its place by bisection and
moves the tail of the arrays at most once. The JSON form is `[[first, end], ...]`, sorted; equal sets have equal JSON forms.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

LARGEST = 2**62  # above any number of a shard or a byte; keeps sums within 64 bits

Range = tuple[int, int]


class RangeSet:
    """A set of whole numbers from 0 up to `LARGEST`. Compares by content; not hashable."""

    __slots__ = ("_count", "_ends", "_starts")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self._starts = array("q")
        self._ends = array("q")
        self._count = 0
        for first, end in ranges:
            self.add(first, end)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> RangeSet:
        """Return the set of these numbers, in any order."""
        ranges = cls()
        first = end = -1
        for n in numbers:  # consecutive numbers are added as one range
            if n == end:
                end += 1
                continue
            if first >= 0:
                ranges.add(first, end)
            first, end = n, n + 1
        if first >= 0:
            ranges.add(first, end)
        return ranges

    @classmethod
    def from_json(cls, value: Any) -> RangeSet:
        """Read the set that `to_json` wrote, or any list of ranges in any order. Raises ValueError on anything else."""
        if not isinstance(value, (list, tuple)):
            raise ValueError("ranges are a list of [first, end]")
        ranges = cls()
        for pair in value:
            if not (
                isinstance(pair, (list, tuple)) and len(pair) == 2 and type(pair[0]) is int and type(pair[1]) is int
            ):
                raise ValueError(f"not a range: {str(pair)[:80]}")
            first, end = pair
            if not 0 <= first < end <= LARGEST:
                raise ValueError(f"not a range: [{first}, {end}]")
            ranges.add(first, end)
        return ranges

    def to_json(self) -> list[list[int]]:
        return [[first, end] for first, end in zip(self._starts, self._ends, strict=True)]

    def copy(self) -> RangeSet:
        ranges = RangeSet()
        ranges._starts, ranges._ends, ranges._count = self._starts[:], self._ends[:], self._count
        return ranges

    # -- reading --

    @property
    def count(self) -> int:
        """Return the number of numbers in the set (its `len` is the number of ranges of `ranges()`)."""
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __len__(self) -> int:
        return len(self._starts)

    def __contains__(self, n: int) -> bool:
        i = bisect_right(self._starts, n) - 1
        return i >= 0 and n < self._ends[i]

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers, rising."""
        for first, end in self.ranges():
            yield from range(first, end)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._starts == other._starts and self._ends == other._ends

    def __repr__(self) -> str:
        return f"RangeSet({self.to_json()})"

    def ranges(self) -> Iterator[Range]:
        return zip(self._starts, self._ends, strict=True)

    def covers(self, first: int, end: int) -> bool:
        """Tell whether every number of [first, end) is in the set."""
        if first >= end:
            return True
        i = bisect_right(self._starts, first) - 1
        return i >= 0 and end <= self._ends[i]

    def within(self, first: int, end: int) -> list[Range]:
        """Return the parts of the set within [first, end)."""
        parts = []
        i = bisect_right(self._ends, first)
        while i < len(self._starts) and self._starts[i] < end:
            parts.append((max(first, self._starts[i]), min(end, self._ends[i])))
            i += 1
        return parts

    # -- changing --

    def add(self, first: int, end: int) -> None:
        """Put every number of [first, end) in; an empty range adds nothing."""
        if first >= end:
            return
        starts, ends = self._starts, self._ends
        low = bisect_left(ends, first)  # the first range that overlaps or touches
        high = bisect_right(starts, end, low)  # the first range behind that does not
        if low == high:
            starts.insert(low, first)
            ends.insert(low, end)
            self._count += end - first
            return
        before = sum(ends[low:high]) - sum(starts[low:high])
        first, end = min(first, starts[low]), max(end, ends[high - 1])
        starts[low], ends[low] = first, end
        if high > low + 1:
            del starts[low + 1 : high]
            del ends[low + 1 : high]
        self._count += end - first - before

    def discard(self, first: int, end: int) -> None:
        """Take every number of [first, end) out, where it is in."""
        if first >= end:
            return
        starts, ends = self._starts, self._ends
        low = bisect_right(ends, first)  # the first range that overlaps
        high = bisect_left(starts, end, low)
        if low == high:
            return
        left, right = starts[low], ends[high - 1]
        self._count -= sum(ends[low:high]) - sum(starts[low:high])
        kept = [(left, first)] if left < first else []
        if end < right:
            kept.append((end, right))
        self._count += sum(b - a for a, b in kept)
        starts[low:high] = array("q", [a for a, _ in kept])
        ends[low:high] = array("q", [b for _, b in kept])

    def update(self, other: RangeSet) -> None:
        """Put all of `other` in."""
        for first, end in other.ranges():
            self.add(first, end)

    def subtract(self, other: RangeSet) -> None:
        """Take all of `other` out."""
        for first, end in other.ranges():
            self.discard(first, end)

    def take(self, limit: int) -> list[Range]:
        """Remove the `limit` lowest numbers (all, where there are fewer) and return them as ranges."""
        lowest = []
        while limit > 0 and self._starts:
            first = self._starts[0]
            end = min(self._ends[0], first + limit)
            lowest.append((first, end))
            limit -= end - first
            self.discard(first, end)
        return lowest

    # -- new sets --

    def union(self, other: RangeSet) -> RangeSet:
        ranges = self.copy()
        ranges.update(other)
        return ranges

    def difference(self, other: RangeSet) -> RangeSet:
        ranges = self.copy()
        ranges.subtract(other)
        return ranges

    def intersection(self, other: RangeSet) -> RangeSet:
        small, large = (self, other) if len(self) <= len(other) else (other, self)
        ranges = RangeSet()
        for first, end in small.ranges():
            for a, b in large.within(first, end):
                ranges.add(a, b)
        return ranges
