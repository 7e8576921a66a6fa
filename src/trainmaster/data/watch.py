"""When a checkpoint is worth storing: it has changed, and nobody is writing it any more.

`Watch.look` is called now and then (a cheap scan of names, sizes and times) and answers with a `Ready` once the path
has changed since the last set, has then been still for a moment, and no process of the program has a file of it open
for writing. A program that says that it has saved spares the waiting: `settled=True`.

`mark` is any value that tells how far the inputs had been read. What comes back is that of the last look *before* the
first change: what was read later may have had no part in the bytes of the set. A program that says that it has saved
gives the mark of its set itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import attrs

from trainmaster.data.trees import scan

SETTLE = 1.0  # s without a change

_Versions = dict[str, tuple[int, int, str]]


@attrs.frozen(slots=True)
class Ready:
    """The path can be stored. `mark`: of the last look before it changed."""

    mark: Any
    size: int


class Watch:
    """The state of one path. A new one, and one told `stored`, take what is there for stored."""

    def __init__(self, path: str, settle: float = SETTLE, mark: Any = None) -> None:
        self.path, self.settle = os.path.abspath(path), settle
        self._stored: _Versions = self._scan()[0]
        self._seen = self._stored
        self._since = 0.0  # of the last change seen
        self._mark = self._seen_mark = mark  # of the last look at what is stored, and at what was seen last
        self._said: tuple[_Versions, Any] | None = (
            None  # what the program said that it had saved, with the mark it gave
        )

    def look(self, now: float, mark: Any = None, pids: Iterable[int] = (), settled: bool = False) -> Ready | None:
        """`now`: any clock that only rises, in seconds. `pids`: the program's processes."""
        versions, size = self._scan()
        if versions == self._stored:
            self._seen, self._mark, self._seen_mark = versions, mark, mark
            return None
        if versions != self._seen:
            self._seen, self._since = versions, now
        self._seen_mark = mark
        if settled:
            self._said = versions, mark
        if not versions or not (settled or now - self._since >= self.settle) or writers(self.path, pids):
            return None
        return Ready(self._said[1] if self._said is not None and self._said[0] == versions else self._mark, size)

    def stored(self) -> None:
        """What the last look saw is in a set now."""
        self._stored, self._mark = self._seen, self._seen_mark

    def _scan(self) -> tuple[_Versions, int]:
        tree = scan(self.path, keep_links=True)
        return ({}, 0) if tree is None else (tree.versions, tree.size)


def writers(path: str, pids: Iterable[int]) -> list[int]:
    """Those of the processes that have a file at or below `path` open for writing."""
    place = os.path.realpath(path)
    return [pid for pid in pids if any(found == place or found.startswith(place + "/") for found in _written_by(pid))]


def _written_by(pid: int) -> list[str]:
    found = []
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return []
    for number in numbers:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
            if target.startswith("/") and _flags(pid, number) & os.O_ACCMODE != os.O_RDONLY:
                found.append(target)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # closed since
    return found


def _flags(pid: int, number: str) -> int:
    with open(f"/proc/{pid}/fdinfo/{number}") as file:
        return next((int(line.split()[1], 8) for line in file if line.startswith("flags:")), 0)
