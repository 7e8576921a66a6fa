"""Read the metrics in a job's storage, and the lines that they are written in.

Each line is a JSON object of its own: the version, which comes first, a series, or a sample. A line that cannot be read is passed over, and
so is a file of another major version.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.foreign import NUMERAL, json_in, printable
from trainmaster.core.metrics import POINTS, Store, figures
from trainmaster.log.storage import Storage, check_size, largest

FOLDER = "metrics"
VERSION = "1.0"
TRIES = 3
SERIES, SAMPLES = "series", "samples"
_NAME = re.compile(rf"({NUMERAL})-({NUMERAL})\.({SERIES}|{SAMPLES})")
_POINT = 32  # bytes: four numbers
_MAJOR = VERSION.split(".")[0]

Rows = deque[tuple[dict[str, Any], bytes]]  # of a Store; taken out as they are written

log = logging.getLogger(__name__)


@attrs.frozen(slots=True, order=True)
class File:
    """One file. `n`: of the snapshot, or of the one before the samples."""

    epoch: int
    n: int
    kind: str

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.epoch}-{self.n}.{self.kind}"

    @property
    def place(self) -> tuple[int, int]:
        return self.epoch, self.n


def sample_line(at: float, task: str, values: Mapping[str, float]) -> bytes:
    """Return the line of what was measured of a task; without values: its attempt ended."""
    entry: dict[str, Any] = {"at": round(at, 3), "task": task}
    entry |= {"values": values} if values else {"ended": True}
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def read_metrics(storage: Storage) -> Store:
    """Return the metrics that a storage has. Raises StorageFailed."""
    return read(storage)[0]


def read(storage: Storage) -> tuple[Store, int]:
    """Return the metrics, and how many bytes of samples they come from. Raises StorageFailed."""
    for _ in range(TRIES):
        contents = _contents(storage)
        if None not in contents.values():
            break  # else a newer snapshot has taken the place of one that was listed
    store = Store()
    for file, content in contents.items():
        _take(store, file, content or b"")
    return store, sum(len(content or b"") for file, content in contents.items() if file.kind == SAMPLES)


def _contents(storage: Storage) -> dict[File, bytes | None]:
    """Return the files in force; None in place of one that is gone. Raises Damaged where all together are larger than a file may be."""
    contents: dict[File, bytes | None] = {}
    for file in _in_force(files(storage)):
        contents[file] = storage.read(file.path)
        size = sum(len(content or b"") for content in contents.values())
        check_size(size, largest(FOLDER), f"{storage.url}/{FOLDER}")
    return contents


def _in_force(present: Sequence[File]) -> list[File]:
    """Return the newest snapshot, and the samples that came after it."""
    snapshots = [file for file in present if file.kind == SERIES]
    samples = [file for file in present if file.kind == SAMPLES]
    newest = snapshots[-1:]
    return [*newest, *(file for file in samples if not newest or file.place >= newest[0].place)]


def files(storage: Storage) -> list[File]:
    """Return the files, the older first."""
    matches = (_NAME.fullmatch(entry.name) for entry in storage.entries(FOLDER))
    present = [File(int(match[1]), int(match[2]), match[3]) for match in matches if match]
    return sorted(present)


def _take(store: Store, file: File, content: bytes) -> None:
    for line in content.splitlines():
        try:
            entry = json_in(line)
            if not isinstance(entry, dict):
                raise ValueError("not an object")
            if "version" in entry and str(entry["version"]).split(".")[0] != _MAJOR:
                version = printable(str(entry["version"]), 20)
                log.warning("%s is of version %s, and %s.x is read here", file.path, version, _MAJOR)
                return
            _take_entry(store, entry)
        except (ValueError, TypeError, KeyError, zlib.error):
            continue  # cut short or damaged


def _take_entry(store: Store, entry: Mapping[str, Any]) -> None:
    if "points" in entry:
        size = _POINT * int(entry["points"])
        if not 0 <= size <= _POINT * POINTS:
            raise ValueError("a series has more points than one may have")
        store.restore(entry, zlib.decompressobj().decompress(base64.b64decode(entry["content"]), size + 1))
    elif "values" in entry:
        at = figures({"at": entry["at"]})["at"]
        store.add(at, str(entry["task"]), figures(dict(entry["values"])))
    elif entry.get("ended") is True:
        store.interrupt(str(entry["task"]))


def header() -> bytes:
    """Return the first line of a file."""
    return json.dumps({"version": VERSION}).encode() + b"\n"


def snapshot(rows: Rows, most: int | None) -> bytes:
    """Return a file of series, with as many as it has room for in `most` bytes."""
    file = io.BytesIO(header())
    file.seek(0, io.SEEK_END)
    while rows:
        facts, content = rows.popleft()  # its bytes are free from here on
        packed = base64.b64encode(zlib.compress(content, 1)).decode()
        line = json.dumps({**facts, "content": packed}).encode() + b"\n"
        if most is not None and file.tell() + len(line) > most:
            break
        file.write(line)
    return file.getvalue()  # no copy
