"""Snapshots: a state as it was after some event, so that a restart reads only later events.

A snapshot is a cache. It is named by its last event, the epoch that wrote that event and the version of the code that
folded it, and carries a checksum; one that is damaged, of other code, or of events that later turned out not to count
is passed over. All may be deleted at any time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import attrs

from trainmaster.core.foreign import NUMERAL, json_in
from trainmaster.log.storage import Damaged, Storage

FOLDER = "snapshots"
KEPT = 2
_TRIED = 2 * KEPT  # two masters may have kept theirs at once; more are not ours
_NAME = re.compile(rf"({NUMERAL})-({NUMERAL})-(.+)\.snapshot")


@attrs.frozen(slots=True, order=True)
class _Name:
    epoch: int
    n: int
    code: str

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.n}-{self.epoch}-{self.code}.snapshot"


def write_snapshot(storage: Storage, n: int, epoch: int, code: str, state: bytes) -> None:
    """Keep `state`, the fold of the events up to `n`, which `epoch` wrote; the oldest beyond `KEPT` are removed."""
    header = {"n": n, "epoch": epoch, "code": code, "size": len(state), "sha256": _checksum(state)}
    storage.replace(_Name(epoch, n, _plain(code)).path, json.dumps(header).encode() + b"\n" + state)
    for name in _names(storage)[:-KEPT]:
        storage.remove(name.path)


def snapshot_ends(storage: Storage) -> list[int]:
    """Return the last event of each kept snapshot; some may not be sound."""
    return [name.n for name in _names(storage)]


def newest(storage: Storage, code: str, counts: Callable[[int, int], bool]) -> tuple[bytes, int, int] | None:
    """Return the state of the newest sound snapshot made by `code`, its last event and that event's epoch; None where there is none.
    `counts(epoch, n)` tells whether the event `n` of an epoch counts.
    """
    usable = [name for name in _names(storage) if name.code == _plain(code) and counts(name.epoch, name.n)]
    for name in reversed(usable[-_TRIED:]):
        try:
            content = storage.read(name.path)
        except Damaged:  # larger than any of ours
            continue
        if content is not None and (state := _sound_state(content, name, code)) is not None:
            return state, name.n, name.epoch
    return None


def _names(storage: Storage) -> list[_Name]:
    matches = (_NAME.fullmatch(entry.name) for entry in storage.entries(FOLDER))
    return sorted(_Name(int(match[2]), int(match[1]), match[3]) for match in matches if match)


def _sound_state(content: bytes, name: _Name, code: str) -> bytes | None:
    line, _, state = content.partition(b"\n")
    try:
        header = json_in(line)
        facts = (header["n"], header["epoch"], header["code"], header["size"], header["sha256"])
    except (ValueError, TypeError, KeyError):
        return None
    return state if facts == (name.n, name.epoch, code, len(state), _checksum(state)) else None


def _checksum(state: bytes) -> str:
    import hashlib

    return hashlib.sha256(state).hexdigest()


def _plain(code: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+]", "_", code)
