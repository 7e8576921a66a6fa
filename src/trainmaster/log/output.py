"""What an attempt printed, as it is kept: numbered by the bytes printed, whatever was left out since.

    logs/<role>-<index>/<attempt>.log                one file: the first bytes | mark | the newest bytes
    logs/<role>-<index>/<attempt>.log.d/<position>   its pieces, in a storage that is elsewhere

A *position* is the number of bytes that went into the log before. It stays what it is when older bytes are left out, so a reader goes on
in one copy where it stopped in another: the agent's, the file, the pieces. What is left out is a *gap*: in a file it follows the first
bytes, and the mark there says how large it is; between pieces their names say it. A reader whose position lies in a gap is told so by a
mark of its own, `left_out` in its piece.

The text of a piece stands for its bytes exactly: a byte that is no UTF-8 is a lone surrogate (PEP 383). `exact` gives the bytes back,
`readable` the text that people read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from trainmaster.core.spec.job import Logs
    from trainmaster.log.storage import Storage

MASTER = "master"  # it prints too
SMALL, LARGE = 256 * 1024, 1024 * 1024  # bytes in one piece: of a file here; of an object, where each is a request
WORDS = "\n[trainmaster: {what}]\n"
_MARK = re.compile(rb"\n\[trainmaster: +(\d+) bytes left out here to keep within \d+\]\n")
_MARK_MOST = 128  # bytes
_FOLDER = "logs"

Read = Callable[[int, int], bytes]  # offset and size -> what a file has there


def folder(task: str) -> str:
    """Where the logs of a task are kept."""
    return f"{_FOLDER}/{task.replace(':', '-')}"


def piece_name(log: str, position: int) -> str:
    """The name of the piece of `log` that begins at a position."""
    return f"{log}.d/{position:015}"


def first_size(limit: int, first: int) -> int:
    """How many of the first bytes a log within `limit` keeps, where `first` are wanted."""
    return min(first, limit // 4)


def mark(left_out: int, limit: int) -> bytes:
    """The mark of a file; of one length, however much is left out."""
    return WORDS.format(what=f"{left_out:>15} bytes left out here to keep within {limit}").encode()


@attrs.frozen(slots=True)
class Gap:
    """What a log's file lacks: `size` bytes after its first `begin`, where a mark of `mark` bytes stands instead."""

    begin: int = 0
    size: int = 0
    mark: int = 0

    @classmethod
    def of(cls, read: Read, first: int | None) -> Gap:
        """The gap of a file, which keeps its `first` bytes (None: it is a file that never has one)."""
        found = None if first is None else _MARK.match(read(first, _MARK_MOST))
        return cls() if first is None or found is None else cls(first, int(found[1]), found.end())

    def read(self, read: Read, position: int, size: int) -> tuple[int, bytes]:
        """What the file has from `position` on, and where that begins: later, where the position lies in the gap."""
        if position < self.begin:
            return position, read(position, min(size, self.begin - position))
        begin = max(position, self.begin + self.size)
        return begin, read(begin - self.size + self.mark, size)

    def printed(self, size: int) -> int:
        """The position at the end of a file of this size."""
        return size + self.size - self.mark


def piece(position: int, begin: int, data: bytes, growing: bool = False) -> dict[str, Any] | None:
    """What a reader at `position` is told where `data`, from `begin` on, is what there is: {offset, next, data}.

    None where that is nothing: no data, or of a log that is still `growing` a part of a character.
    """
    if not data:
        return None
    if begin > position:
        return {"offset": position, "next": begin, **_left_out(begin - position)}
    whole = whole_characters(data)
    if not whole and growing:
        return None
    kept = whole or data
    return {"offset": position, "next": position + len(kept), "data": kept.decode("utf-8", "surrogateescape")}


def beyond(told: dict[str, Any], position: int) -> dict[str, Any] | None:
    """The part of a piece that follows `position`, or None where there is none."""
    if told["next"] <= position:
        return None
    if told["offset"] >= position:
        return told
    if "left_out" in told:
        return {**told, "offset": position, **_left_out(told["next"] - position)}
    data = exact(told["data"])[position - told["offset"] :].decode("utf-8", "surrogateescape")
    return {**told, "offset": position, "data": data}


def exact(text: str) -> bytes:
    """The bytes that a piece's text stands for."""
    return text.encode("utf-8", "surrogateescape")


def readable(text: str) -> str:
    """The text of a piece for people: a byte that is no UTF-8 is shown as U+FFFD."""
    if text.isascii():
        return text
    return exact(text).decode("utf-8", "replace")


def _left_out(size: int) -> dict[str, Any]:
    return {"data": WORDS.format(what=f"{size} bytes left out here"), "left_out": size}


def whole_characters(data: bytes) -> bytes:
    """`data` without a UTF-8 character cut off at its end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # the first byte of a character of 2 to 4 bytes
            return data[:-back] if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else data
        if byte < 0x80:
            break
    return data


def folders(storage: Storage, directory: Storage) -> set[str]:
    """The folders of the tasks that have printed; asked once, where a look for each of a thousand tasks takes a request of its own."""
    return {f"{_FOLDER}/{entry.name}" for place in (storage, directory) for entry in place.entries(_FOLDER)}


def attempts(storage: Storage, directory: Storage, task: str) -> list[int]:
    """The attempts of a task whose output is kept, in order."""
    names = {entry.name.partition(".")[0] for place in (storage, directory) for entry in place.entries(folder(task))}
    return sorted(int(name) for name in names if name.isdigit())


class Printed:
    """One attempt's output, wherever it is kept.

    Where the job's storage is elsewhere, its `directory` on this machine has what agents have not stored there yet, or could not.
    """

    def __init__(self, storage: Storage, directory: Storage, task: str, attempt: int, logs: Logs) -> None:
        first = None if task == MASTER else first_size(logs.limit, logs.first)
        places = (storage,) if storage.url == directory.url else (storage, directory)
        self._copies = [Copy(place, task, attempt, first) for place in places]

    @property
    def size(self) -> int:
        """The position at its end."""
        return max(copy.size for copy in self._copies)

    def pieces(self, position: int = 0, growing: bool = False) -> Iterator[dict[str, Any]]:
        """What there is from `position` on, as pieces."""
        for copy in self._copies:
            for told in copy.pieces(position, growing):
                yield told
                position = told["next"]


class Copy:
    """One attempt's log in one storage. It may still grow, and be put together, while it is read."""

    def __init__(self, storage: Storage, task: str, attempt: int, first: int | None) -> None:
        self._storage, self._first = storage, first
        self._path = f"{folder(task)}/{attempt}.log"
        self._looked = False
        self._whole = 0  # bytes of the one file
        self._parts: list[tuple[int, int]] = []  # of each piece, its position and size

    @property
    def size(self) -> int:
        """The position at its end."""
        self._look()
        if self._parts:
            return sum(self._parts[-1])
        return Gap.of(self._read, self._first).printed(self._whole)

    def pieces(self, position: int = 0, growing: bool = False) -> Iterator[dict[str, Any]]:
        """What there is from `position` on, as pieces."""
        while (told := piece(position, *self.read(position), growing)) is not None:
            yield told
            position = told["next"]

    def read(self, position: int) -> tuple[int, bytes]:
        """What is there from `position` on, and where that begins; no bytes where nothing is there (yet)."""
        if self._storage.local:
            return self._of_growing(position)
        found = self._of_objects(position) if self._looked else (position, b"")
        if not found[1]:
            self._look()
            found = self._of_objects(position)
        return found

    def _of_growing(self, position: int) -> tuple[int, bytes]:
        """Of a file, which another with a larger gap may replace between two reads."""
        if self._first is None or position + SMALL <= self._first:
            return position, self._read(position, SMALL)
        while True:
            gap = Gap.of(self._read, self._first)
            found = gap.read(self._read, position, SMALL)
            if Gap.of(self._read, self._first) == gap:
                return found

    def _of_objects(self, position: int) -> tuple[int, bytes]:
        if not self._parts:
            return Gap.of(self._read, self._first).read(self._read, position, LARGE)
        for begin, size in self._parts:
            if position < begin + size:
                at = max(position, begin)
                part = piece_name(self._path, begin)
                return at, self._storage.read(part, at - begin, min(LARGE, begin + size - at)) or b""
        return position, b""

    def _read(self, offset: int, size: int) -> bytes:
        if not self._storage.local:
            size = min(size, self._whole - offset)  # servers refuse to read beyond the end
        return b"" if size <= 0 else self._storage.read(self._path, offset, size) or b""

    def _look(self) -> None:
        name = self._path.rpartition("/")[2]
        there = {entry.name: entry for entry in self._storage.entries(self._path.rpartition("/")[0])}
        self._whole = there[name].size if name in there else 0
        self._parts = []
        if name not in there and f"{name}.d" in there:
            parts = self._storage.entries(f"{self._path}.d")
            self._parts = [(int(part.name), part.size) for part in parts if part.name.isdigit()]
        self._looked = True
