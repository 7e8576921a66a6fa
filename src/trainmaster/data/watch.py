"""A checkpoint is worth storing once it has changed and nobody is writing it any more.

`Watch.look` is called now and then (a cheap scan of names, sizes and times). It returns a `Ready` once the path has changed since the last
set, has then been still for a moment, and has no file that a process of the program holds open for writing. A program that reports that it
has saved spares the waiting: `settled=True`.

A program that renews its checkpoint more often than that is never still. Where the caller is `pressed`, a file that was renamed into place
is whole although it has just come: its bytes are older than its name (rename(2) changes the time of the status alone), or the name was that
of another file at the look before. A file written in place has to be still. Only the program knows whether two such files belong together:
one may be a step older, as a kill between the two renames would have left it. `why` tells what a path that has changed waits for, and
`changed` since when. A link or pipe that no set will hold is a change too: the set that follows, though it may equal the previous one,
names it.

`mark` is any value that tells how far the inputs had been read. `look` returns the mark of the last look *before* the
first change: records read later may have had no part in the bytes of the set. A program that reports that it has saved
gives the mark of its set itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import attrs

from trainmaster.data.store.trees import Tree, naming, scan

SETTLE = 1.0  # s without a change


@attrs.frozen(slots=True)
class Ready:
    """The path can be stored. `mark`: of the last look before it changed."""

    mark: Any


class Watch:
    """The state of one path. A new watch, and one whose `stored` was called, regard the present files as stored."""

    def __init__(self, path: str, settle: float = SETTLE, mark: Any = None) -> None:
        self.path, self.settle = os.path.abspath(path), settle
        self.why, self.changed = "", 0.0
        self._stored = self._seen = self._scan()
        self._fresh: dict[str, tuple[float, bool]] = {}  # when a file was seen changed last, and whether by a rename
        self._since = 0.0  # of the last change seen
        self._mark = self._seen_mark = mark  # of the last look at the stored files, and of the last look
        self._announced: tuple[Tree, Any] | None = None  # the files that the program reported as saved, with its mark

    def look(
        self, now: float, mark: Any = None, pids: Iterable[int] = (), settled: bool = False, pressed: bool = False
    ) -> Ready | None:
        """Return `Ready` once the path can be stored. `now`: any clock that only rises, in seconds. `pids`: the program's processes."""
        before, tree = self._seen, self._scan()
        same = tree.is_same(self._stored)
        if not same and before.is_same(self._stored):
            self.changed = now
        self._seen, self._seen_mark = tree, mark
        if same:
            self._mark, self.why = mark, ""
            return None
        self._note(before, tree, now)
        if settled:
            self._announced = tree, mark
        still = settled or now - self._since >= self.settle or (pressed and self._all_renamed(now))
        self.why = self._reason_to_wait(still, pids) if tree.leaves else self.unstorable
        if self.why or not tree.leaves:
            return None
        if self._announced is not None and self._announced[0].versions == tree.versions:
            return Ready(self._announced[1])
        return Ready(self._mark)

    @property
    def unstorable(self) -> str:
        """Say what is at the path where none of it can be stored; "" where a file is there, or nothing at all."""
        left_out = self._seen.left_out if not self._seen.leaves else {}
        return f"it holds nothing that can be stored: {naming(left_out)}" if left_out else ""

    @property
    def left_out(self) -> dict[str, str]:
        """Return the entries of the path that no set holds, as the last look saw them: path -> what it is."""
        return self._seen.left_out

    def stored(self) -> None:
        """Note that a set holds now what the last look saw."""
        self._stored, self._mark = self._seen, self._seen_mark

    def _note(self, before: Tree, tree: Tree, now: float) -> None:
        """Note which files have changed between two looks."""
        if not tree.is_same(before):
            self._since = now
        for path, leaf in tree.leaves.items():
            old = before.leaves.get(path)
            if old is None or old.version != leaf.version:
                replaced = leaf.ctime_ns > leaf.mtime_ns or (old is not None and old.inode != leaf.inode)
                self._fresh[path] = (now, replaced)

    def _all_renamed(self, now: float) -> bool:
        """Tell whether all files that are not still have been renamed into place."""
        young = {path: change for path, change in self._fresh.items() if now - change[0] < self.settle}
        self._fresh = young
        return all(replaced for path, (_, replaced) in young.items() if path in self._seen.leaves)

    def _reason_to_wait(self, still: bool, pids: Iterable[int]) -> str:
        if not still:
            return f"it is never still for {self.settle:g} s, and not all of it is renamed into place"
        holders = writers(self.path, pids)
        return f"process {holders[0]} has a file of it open for writing" if holders else ""

    def _scan(self) -> Tree:
        return scan(self.path, keep_links=True) or Tree(self.path, {})


def writers(path: str, pids: Iterable[int]) -> list[int]:
    """Return the processes, of `pids`, that have a file at or below `path` open for writing."""
    place = os.path.realpath(path)
    return [
        pid
        for pid in pids
        if any(target == place or target.startswith(place + "/") for target in _paths_written_by(pid))
    ]


def _paths_written_by(pid: int) -> list[str]:
    paths = []
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return []
    for number in numbers:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
            if target.startswith("/") and _flags(pid, number) & os.O_ACCMODE != os.O_RDONLY:
                paths.append(target)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # closed since
    return paths


def _flags(pid: int, number: str) -> int:
    with open(f"/proc/{pid}/fdinfo/{number}") as file:
        return next((int(line.split()[1], 8) for line in file if line.startswith("flags:")), 0)
