"""The output of an attempt, as it is kept: numbered by the bytes printed, whatever was left out since.

    logs/<role>-<index>/<attempt>.log                one file: the first bytes | mark | the newest bytes
    logs/<role>-<index>/<attempt>.log.d/<position>   its pieces, in a storage that is elsewhere

A *position* is the number of bytes that went into the log before. It does not change when older bytes are left out, so a reader goes on
in one copy where it stopped in another: the agent's, the file, the pieces. The bytes left out are a *gap*: in a file it follows the first
bytes, and the mark there says how large it is; between pieces their names say it. A reader whose position is in a gap gets a mark of its
own, `left_out` in its piece.

The text of a piece stands for its bytes exactly: a byte that is not UTF-8 is a lone surrogate (PEP 383). `exact` gives the bytes back,
`readable` the text that people read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from trainmaster.core.foreign import number_in, numbers_in

if TYPE_CHECKING:
    from trainmaster.core.spec.job import Logs
    from trainmaster.log.storage import Storage

MASTER = "master"  # it prints too
SMALL, LARGE = (
    256 * 1024,
    1024 * 1024,
)  # bytes in one piece: of a local file; of an object, where each piece is a request
WORDS = "\n[trainmaster: {what}]\n"
_MARK = re.compile(rb"\n\[trainmaster: +([0-9]{1,15}) bytes left out here to keep within [0-9]+\]\n")
_MARK_MOST = 128  # bytes
_FOLDER = "logs"

Read = Callable[[int, int], bytes]  # offset and size -> the bytes of a file there


def folder(task: str) -> str:
    """Return the folder of a task's logs."""
    return f"{_FOLDER}/{task.replace(':', '-')}"


def piece_name(log: str, position: int) -> str:
    """Return the name of the piece of `log` that begins at a position."""
    return f"{log}.d/{position:015}"


def first_size(limit: int, first: int) -> int:
    """Return how many of the first bytes a log within `limit` keeps, where `first` are asked for."""
    return min(first, limit // 4)


def mark(left_out: int, limit: int) -> bytes:
    """Return the mark of a file; its length is the same, however much is left out."""
    return WORDS.format(what=f"{left_out:>15} bytes left out here to keep within {limit}").encode()


@attrs.frozen(slots=True)
class Gap:
    """The bytes that a log's file lacks: `size` bytes after its first `begin`, replaced by a mark of `mark` bytes."""

    begin: int = 0
    size: int = 0
    mark: int = 0

    @classmethod
    def of(cls, read: Read, first: int | None) -> Gap:
        """Return the gap of a file, which keeps its `first` bytes (None: the file never has a gap)."""
        match = None if first is None else _MARK.match(read(first, _MARK_MOST))
        return cls() if first is None or match is None else cls(first, int(match[1]), match.end())

    def read(self, read: Read, position: int, size: int) -> tuple[int, bytes]:
        """Read the file from `position` on. Return where the bytes begin (later, where the position is in the gap), and the bytes."""
        if position < self.begin:
            return position, read(position, min(size, self.begin - position))
        begin = max(position, self.begin + self.size)
        return begin, read(begin - self.size + self.mark, size)

    def printed(self, size: int) -> int:
        """Return the position at the end of a file of this size."""
        return size + self.size - self.mark


def piece(position: int, begin: int, data: bytes, growing: bool = False) -> dict[str, Any] | None:
    """Return the piece for a reader at `position`, where the log has `data` from `begin` on: {offset, next, data}.

    None where there is nothing to read: no data, or, of a log that is still `growing`, a part of a character.
    """
    if not data:
        return None
    if begin > position:
        return {"offset": position, "next": begin, **_gap_fields(begin - position)}
    whole = whole_characters(data)
    if not whole and growing:
        return None
    kept = whole or data
    return {"offset": position, "next": position + len(kept), "data": kept.decode("utf-8", "surrogateescape")}


def beyond(piece: dict[str, Any], position: int) -> dict[str, Any] | None:
    """Return the part of a piece that follows `position`, or None where there is none."""
    if piece["next"] <= position:
        return None
    if piece["offset"] >= position:
        return piece
    if "left_out" in piece:
        return {**piece, "offset": position, **_gap_fields(piece["next"] - position)}
    data = exact(piece["data"])[position - piece["offset"] :].decode("utf-8", "surrogateescape")
    return {**piece, "offset": position, "data": data}


def exact(text: str) -> bytes:
    """Return the bytes that a piece's text stands for."""
    return text.encode("utf-8", "surrogateescape")


def readable(text: str) -> str:
    """Return the text of a piece for people: a byte that is not UTF-8 is shown as U+FFFD."""
    if text.isascii():
        return text
    return exact(text).decode("utf-8", "replace")


def _gap_fields(size: int) -> dict[str, Any]:
    return {"data": WORDS.format(what=f"{size} bytes left out here"), "left_out": size}


def whole_characters(data: bytes) -> bytes:
    """Return `data` without a UTF-8 character that is cut off at its end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # the first byte of a character of 2 to 4 bytes
            return data[:-back] if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else data
        if byte < 0x80:
            break
    return data


def folders(storage: Storage, directory: Storage) -> set[str]:
    """Return the folders of the tasks that have printed, by one request; a look for each of a thousand tasks would take one each."""
    return {f"{_FOLDER}/{entry.name}" for place in (storage, directory) for entry in place.entries(_FOLDER)}


def attempts(storage: Storage, directory: Storage, task: str) -> list[int]:
    """Return the attempts of a task whose output is kept, in order."""
    names = {entry.name.partition(".")[0] for place in (storage, directory) for entry in place.entries(folder(task))}
    return numbers_in(names)


class Printed:
    """The output of one attempt, wherever it is kept.

    Where the job's storage is elsewhere, its `directory` on this machine has output that agents have not stored there yet, or could not.
    """

    def __init__(self, storage: Storage, directory: Storage, task: str, attempt: int, logs: Logs) -> None:
        first = None if task == MASTER else first_size(logs.limit, logs.first)
        places = (storage,) if storage.url == directory.url else (storage, directory)
        self._copies = [Copy(place, task, attempt, first) for place in places]

    @property
    def size(self) -> int:
        """Return the position at its end."""
        return max(copy.size for copy in self._copies)

    def pieces(self, position: int = 0, growing: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the output from `position` on, as pieces."""
        for copy in self._copies:
            for part in copy.pieces(position, growing):
                yield part
                position = part["next"]


class Copy:
    """The log of one attempt in one storage. It may still grow, or be put together, while it is read."""

    def __init__(self, storage: Storage, task: str, attempt: int, first: int | None) -> None:
        self._storage, self._first = storage, first
        self._path = f"{folder(task)}/{attempt}.log"
        self._looked = False
        self._whole = 0  # bytes of the one file
        self._parts: list[tuple[int, int]] = []  # of each piece, its position and size

    @property
    def size(self) -> int:
        """Return the position at its end."""
        self._look()
        if self._parts:
            return sum(self._parts[-1])
        return Gap.of(self._read, self._first).printed(self._whole)

    def pieces(self, position: int = 0, growing: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the output from `position` on, as pieces."""
        while (part := piece(position, *self.read(position), growing)) is not None:
            yield part
            position = part["next"]

    def read(self, position: int) -> tuple[int, bytes]:
        """Read from `position` on. Return where the bytes begin, and the bytes; none where there are none (yet)."""
        if self._storage.local:
            answer = self._read_file(position)
            if answer[1] or self._storage.exists(
                self._path
            ):  # else a master may have kept the end for its agent, as a piece
                return answer
        answer = self._read_objects(position) if self._looked else (position, b"")
        if not answer[1]:
            self._look()
            answer = self._read_objects(position)
        return answer

    def _read_file(self, position: int) -> tuple[int, bytes]:
        """Read from a file, which one with a larger gap may replace between two reads."""
        if self._first is None or position + SMALL <= self._first:
            return position, self._read(position, SMALL)
        while True:
            gap = Gap.of(self._read, self._first)
            answer = gap.read(self._read, position, SMALL)
            if Gap.of(self._read, self._first) == gap:
                return answer

    def _read_objects(self, position: int) -> tuple[int, bytes]:
        if not self._parts:
            return Gap.of(self._read, self._first).read(self._read, position, LARGE)
        for begin, size in self._parts:
            if position < begin + size:
                start = max(position, begin)
                part = piece_name(self._path, begin)
                return start, self._storage.read(part, start - begin, min(LARGE, begin + size - start)) or b""
        return position, b""

    def _read(self, offset: int, size: int) -> bytes:
        if not self._storage.local:
            size = min(size, self._whole - offset)  # servers refuse to read beyond the end
        return b"" if size <= 0 else self._storage.read(self._path, offset, size) or b""

    def _look(self) -> None:
        name = self._path.rpartition("/")[2]
        entries = {entry.name: entry for entry in self._storage.entries(self._path.rpartition("/")[0])}
        self._whole = entries[name].size if name in entries else 0
        self._parts = []
        if name not in entries and f"{name}.d" in entries:
            parts = self._storage.entries(f"{self._path}.d")
            self._parts = [(at, part.size) for part in parts if (at := number_in(part.name)) is not None]
        self._looked = True
