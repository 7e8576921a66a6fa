"""The division of an input's files and records among the tasks that read it.

A *listing* holds what a URL named when it was listed: files with sizes, under one *prefix*, the part of the URL before
its first pattern (or the directory, or the file's folder). A file keeps its path below the prefix wherever it is put,
so that equal names in two folders do not meet. Dividing is a pure function of the set of files: the same listing gives
the same parts, in whatever order a storage lists it.

Whole files are dealt largest first, each to the part with the fewest bytes (Graham's LPT rule): no two parts differ by
more than the largest file. Records that can be cut anywhere are dealt as *pieces*, contiguous ranges of bytes;
the module `records` decides which record belongs to which piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

import attrs

from trainmaster.core.plain import Plain

SPLIT, WHOLE = "split", "whole"


@attrs.frozen(slots=True, eq=False, repr=False)
class File(Plain):
    """A file of an input. `hosts` have it on their disks; `stamp` (an etag, or a time of change) tells its content
    from a later one. `name`: its path in the input's directory, "" where that is the path below the listing's prefix."""

    path: str
    size: int
    hosts: tuple[str, ...] = ()
    stamp: str = ""
    name: str = ""


@attrs.frozen(slots=True, eq=False, repr=False)
class Listing(Plain):
    """The files that an input's URL names. Every path begins with the prefix, which ends with "/".

    Files of several URLs have names, and the prefix is "".
    """

    prefix: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def relative(self, file: File) -> str:
        """Return the path of the file below the prefix, which is its path in the input's directory."""
        return file.name or file.path.removeprefix(self.prefix)


def joined(listings: Sequence[Listing]) -> Listing:
    """Return the files of several URLs as one listing, each file once. Each keeps its path below its URL.

    If two have the same one, the name of the later file gets the number of its URL in front: `2-part-0`.
    """
    files: dict[str, File] = {}
    names: set[str] = set()
    for number, listing in enumerate(listings, 1):
        for file in listing.files:
            if file.path in files:
                continue
            name = listing.relative(file)
            while name in names:
                folder, mark, last = name.rpartition("/")
                name = f"{folder}{mark}{number}-{last}"
            names.add(name)
            files[file.path] = attrs.evolve(file, name=name)
    return Listing("", tuple(files.values()))


@attrs.frozen(slots=True, order=True)
class Piece:
    """The bytes [start, end) of a file, or all of it where `end` is None."""

    path: str
    start: int = 0
    end: int | None = None


def parts(files: Sequence[File], tasks: int, mode: str = SPLIT) -> list[list[File]]:
    """Return the files of each task: a part of them (`split`), or all of them (`whole`)."""
    if mode == WHOLE:
        everything = sorted(files, key=_path)
        return [list(everything) for _ in range(tasks)]
    return split_files(files, tasks)


def split_files(files: Sequence[File], n: int) -> list[list[File]]:
    """Deal the files into `n` parts of about equally many bytes; within a part, by path."""
    if n < 1:
        raise ValueError(f"files are split into at least one part, not {n}")
    dealt: list[list[File]] = [[] for _ in range(n)]
    loads = [(0, 0, part) for part in range(n)]  # bytes, then files: empty ones are spread too
    for file in sorted(files, key=lambda file: (-file.size, file.path)):
        size, count, part = heappop(loads)
        dealt[part].append(file)
        heappush(loads, (size + file.size, count + 1, part))
    return [sorted(part, key=_path) for part in dealt]


def split_records(files: Sequence[File], n: int, cuttable: Callable[[File], bool]) -> list[list[Piece]]:
    """Deal the records of the files into `n` parts: cuttable files in contiguous ranges of bytes, the others whole.

    The whole files come first, as `split_files` deals them; the ranges then level the parts.
    """
    if n < 1:
        raise ValueError(f"records are split into at least one part, not {n}")
    ranges = sorted((file for file in files if cuttable(file) and file.size), key=_path)
    dealt = [[Piece(file.path) for file in part] for part in split_files([f for f in files if not cuttable(f)], n)]
    sizes = {file.path: file.size for file in files}
    loads = [sum(sizes[piece.path] for piece in part) for part in dealt]
    level = _level(loads, sum(file.size for file in ranges))
    at, rest = 0, max(level - loads[0], 0)
    for file in ranges:
        start = 0
        while start < file.size:
            while rest <= 0 and at < n - 1:
                at += 1
                rest = max(level - loads[at], 0)
            end = file.size if at == n - 1 else min(file.size, start + rest)
            rest -= end - start
            dealt[at].append(Piece(file.path) if (start, end) == (0, file.size) else Piece(file.path, start, end))
            start = end
    return dealt


def deal_splits(files: Sequence[File], n: int, around: bool = False) -> list[list[File]]:
    """Deal splits that are cut already into `n` parts: in contiguous blocks of about equally many bytes, or (`around`) one to each in turn.

    Where there are enough, every part has at least one.
    """
    if n < 1:
        raise ValueError(f"splits are dealt into at least one part, not {n}")
    if around:
        return [list(files[part::n]) for part in range(n)]
    sizes = [max(file.size, 1) for file in files]  # a split without a file often has no size
    dealt: list[list[File]] = []
    at, rest = 0, sum(sizes)
    for parts_left in range(n, 0, -1):
        end, load, level = at, 0, rest / parts_left
        while end < len(files) - (parts_left - 1) and (parts_left == 1 or end == at or load + sizes[end] / 2 <= level):
            load += sizes[end]
            end += 1
        dealt.append(list(files[at:end]))
        at, rest = end, rest - load
    return dealt


def visible(name: str) -> bool:
    """Tell whether a listed name is data: not `.x`, `_SUCCESS` or `_x`; `_column=value` is a folder of data, as in Spark."""
    return not name.startswith(".") and (not name.startswith("_") or "=" in name)


def split_urls(text: str) -> list[str]:
    """Return the URLs that Hadoop's tools write with commas between them. A comma within braces is of a pattern: `/logs/{2020,2021}`."""
    return [url for part in re.split(r",(?![^{}]*\})", text) if (url := part.strip())]


def _level(loads: Iterable[int], amount: int) -> int:
    """Return the height to which `amount` fills the valleys between `loads`, rounded up."""
    heap = list(loads)
    heapify(heap)
    filled, count = 0, 0
    while heap:
        lowest = heappop(heap)
        if count and lowest * count - filled >= amount:
            break
        filled, count = filled + lowest, count + 1
    return -(-(filled + amount) // count) if count else 0


def _path(file: File) -> str:
    return file.path
