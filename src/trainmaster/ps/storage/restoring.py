"""Restore a server from the newest checkpoint and the logs after it, also where there were more servers, or fewer.

A server that comes back into the same number of servers reads its own share and its own log. Where its share or the manifest is damaged, it
takes the checkpoint before, and the log since then: logs are kept since the last but one. Where two checkpoints are damaged, the log no
longer reaches back to the one before: that is an error, since what was learned between would be lost in silence.

Into another number of servers each one reads, in the same way, all shares and all logs of the former ones. The former server 0's log has
the order, the others have their parts of each draft; each new server keeps its own rows of these.
"""

from __future__ import annotations

import os

from ..errors import ServerError
from ..shard import Draft, LostDraft, Shard
from ..specification import definition_of
from ..tables.memory import check_room
from .checkpoints import Manifest, draft_of, journal_folder, load_share, manifests, part_of
from .journal import Damaged, records_behind, segments
from .locks import take_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..shard import Arrays, Name
    from .journal import Record


class CannotRestore(ServerError):
    """There is a state, and it cannot be had, now or by the next attempt."""


def restore(
    directory: str,
    index: int,
    servers: int,
    warn: Callable[[str], None],
    snapshot: Callable[[Shard], None] = lambda shard: None,
) -> tuple[Shard, bool]:
    """Return the server's state, and whether it was that of another number of servers. An empty directory gives an empty state.

    `snapshot` is called at each entry of the log that asks for a checkpoint. Raises CannotRestore, NoRoom, InUse.
    """
    known = manifests(directory)
    former = _former_servers(directory, known)
    try:
        if former not in (0, servers):
            return _restore_resharded(directory, index, servers, former, known, warn), True
        shard = _load_newest([manifest for manifest in known if manifest.servers == servers], index, servers, warn)
        _check_log(journal_folder(directory, index, servers), shard.sequence)
        for record in records_behind(journal_folder(directory, index, servers), shard.sequence):
            replay(shard, record, snapshot)
    except (Damaged, LostDraft) as error:
        raise CannotRestore(str(error)) from error
    return shard, False


def replay(shard: Shard, record: Record, snapshot: Callable[[Shard], None]) -> None:
    """Do what a record of the server's own log says, where the state does not have it yet."""
    header = record.header
    if header["op"] == "define":
        if shard.definition is None:
            shard.define(definition_of(header["definition"]), record.arrays())
    elif header["op"] == "draft":
        shard.hold(draft_of(header, record.arrays()))
    elif header["op"] == "evict":
        shard.evict(record.arrays())
    elif header["op"] == "seed":
        shard.seed(record.arrays(), header["time"])
    elif header["op"] == "entry" and header["sequence"] > shard.sequence:
        shard.handle(header)
        if "checkpoint" in header:
            snapshot(shard)


# -- below --


def _former_servers(directory: str, known: list[Manifest]) -> int:
    """Return how many servers the state in a directory is of; 0: there is none."""
    if known:
        return known[0].servers
    folder = os.path.join(directory, "journal")
    counts = {
        int(name.partition("-of-")[2])
        for name in (os.listdir(folder) if os.path.isdir(folder) else ())
        if name.startswith("0-of-") and _has_definition(os.path.join(folder, name))
    }
    if len(counts) > 1:
        raise CannotRestore(
            f"{folder} has logs of {' and of '.join(map(str, sorted(counts)))} servers, and no checkpoint tells which is newer"
        )
    return counts.pop() if counts else 0


def _load_newest(known: list[Manifest], index: int, servers: int, warn: Callable[[str], None]) -> Shard:
    faults = []
    for manifest in known:
        shard = Shard(index, servers)
        check_room(index, servers, manifest.version, manifest.sizes)
        try:
            manifest.check(index)
            for draft in load_share(manifest.path(index), shard):
                shard.drafts[draft.name] = draft
            shard.completed = manifest.version
            return shard
        except Damaged as error:
            faults.append(str(error))
            warn(f"{error}; the checkpoint before it is tried")
    if faults and not _has_definition(journal_folder(os.path.dirname(known[0].folder), index, servers)):
        raise _none_whole(faults)
    return Shard(index, servers)


def _none_whole(faults: list[str]) -> CannotRestore:
    return CannotRestore(f"no checkpoint is whole: {'; '.join(faults)}: bring a file back, or name another directory")


def _check_log(folder: str, sequence: int) -> None:
    """Raise Damaged where a log begins only behind the entry that a state ends with."""
    begins = [number for number, _, _ in segments(folder)]
    if begins and begins[0] > sequence:
        raise Damaged(
            f"the log in {folder} begins behind entry {begins[0]}, and the newest whole checkpoint ends with entry {sequence}:"
            " bring a file of a newer checkpoint back, or remove the newer checkpoints and the logs to go on from the whole one"
        )


def _has_definition(folder: str) -> bool:
    return any(record.header["op"] == "define" for record in records_behind(folder, 0))


def _restore_resharded(
    directory: str, index: int, servers: int, former: int, known: list[Manifest], warn: Callable[[str], None]
) -> Shard:
    folders = [journal_folder(directory, number, former) for number in range(former)]
    locks = [take_lock(folder, warn, is_shared=True) for folder in folders]  # once their servers have ended
    try:
        former_ones = [manifest for manifest in known if manifest.servers == former]
        shard, parts = _load_newest_of_all(former_ones, folders, index, servers, warn)
        evictions: dict[int, list[Record]] = {}  # by the entry behind which they came
        seeds: list[Record] = []
        sequence = shard.sequence
        for number, folder in enumerate(folders):
            _check_log(folder, sequence)
            for record in records_behind(folder, sequence):
                if record.header["op"] == "draft":
                    task, attempt, step = record.header["name"]
                    parts.add(number, (task, attempt, step), record)
                elif record.header["op"] == "evict":
                    evictions.setdefault(record.header["sequence"], []).append(record)
                elif record.header["op"] == "seed":
                    seeds.append(record)
        for name in parts.committed():
            parts.hold(name, shard)
        if shard.definition is not None:
            _evict(shard, evictions)
        for record in records_behind(folders[0], sequence):
            if record.header["op"] == "define" and shard.definition is None:
                shard.define(definition_of(record.header["definition"]), record.arrays())
                for seed in seeds:  # all came before the first version
                    shard.seed(rows_of(seed.arrays(), shard), seed.header["time"])
            elif record.header["op"] == "entry" and record.header["sequence"] > shard.sequence:
                header = record.header
                committed = [header["commit"]] if "commit" in header else []
                for name in header["of"] if "version" in header else committed:
                    parts.hold(tuple(name), shard)
                shard.handle(record.header)
                _evict(shard, evictions)
    finally:
        for lock in locks:
            os.close(lock)
    return shard


def _load_newest_of_all(
    known: list[Manifest], folders: list[str], index: int, servers: int, warn: Callable[[str], None]
) -> tuple[Shard, Parts]:
    """Return what a new server has of the newest checkpoint all shares of which are whole, and the parts of drafts in it."""
    faults = []
    for manifest in known:
        shard, parts = Shard(index, servers), Parts(manifest.servers)
        check_room(index, servers, manifest.version, manifest.sizes)
        try:
            for number in range(manifest.servers):
                manifest.check(number)
                for draft in load_share(manifest.path(number), shard, is_own=False):
                    parts.add(number, draft.name, draft)
            return shard, parts
        except Damaged as error:
            faults.append(str(error))
            warn(f"{error}; the checkpoint before it is tried")
    if faults and not _has_definition(folders[0]):
        raise _none_whole(faults)
    return Shard(index, servers), Parts(len(folders))


def _evict(shard: Shard, evictions: dict[int, list[Record]]) -> None:
    """Evict what each former server did behind the present entry."""
    for record in evictions.get(shard.sequence, ()):
        shard.evict(record.arrays())


def rows_of(arrays: Arrays, shard: Shard) -> dict[str, Any]:
    """Return those rows that belong to a server, with their ids."""
    return part_of(Draft(("", 0, 0), 0, dict(arrays)), shard)


class Parts:
    """The parts of each draft that the former servers have."""

    def __init__(self, servers: int) -> None:
        self._parts: list[dict[Name, Record | Draft]] = [{} for _ in range(servers)]

    def add(self, number: int, name: Name, part: Record | Draft) -> None:
        self._parts[number].setdefault(name, part)

    def forget(self, is_late: Callable[[Name], bool]) -> None:
        """Forget the parts of drafts that came to their end."""
        for parts in self._parts:
            for name in [name for name in parts if is_late(name)]:
                del parts[name]

    def has(self, name: Name) -> bool:
        """Tell whether all parts of a draft are here."""
        return all(name in parts for parts in self._parts)

    def committed(self) -> list[Name]:
        return [name for name, part in self._parts[0].items() if isinstance(part, Draft) and part.is_committed]

    def hold(self, name: Name, shard: Shard) -> None:
        """Put a draft together, and have the server hold what is its own of it. Raises LostDraft."""
        if name in shard.drafts:
            return
        import numpy

        joined: dict[str, list[Any]] = {}
        draft: Draft | None = None
        for number, parts in enumerate(self._parts):
            if name not in parts:
                raise LostDraft(
                    f"server {number} of {len(self._parts)} has lost push {name[2]} of {name[0]}, attempt {name[1]}"
                )
            part = parts.pop(name)
            draft = part if isinstance(part, Draft) else draft_of(part.header, part.arrays())
            for key, array in part_of(draft, shard).items():
                joined.setdefault(key, []).append(array)
        assert draft is not None
        arrays = {key: numpy.concatenate(arrays) if len(arrays) > 1 else arrays[0] for key, arrays in joined.items()}
        shard.drafts[name] = Draft(name, draft.base, arrays, draft.rate, draft.is_committed)
