"""Checkpoints: one version of all that servers hold, a file for each server, and a manifest that is written when all of them are whole.

    DIRECTORY/version-V/variables-I-of-N.ckpt    the share of server I: records (see `journal`) of parameters, rows and slots
    DIRECTORY/version-V/manifest-of-N.json       size and digest (BLAKE2b) of each share
    DIRECTORY/journal/I-of-N/                    the log of server I

A share is of one moment, that of one entry of the order, on all servers of the same one. It is written beside the training: rows that
change before they are written are put aside first (see `table.Frozen`); all else is copied at once. A version without a
manifest was never whole. One whose manifest is there but damaged was whole once: `manifests` has it, with its fault.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass

from ...runtime.folders import create_draft, make_own_folder
from ..shard import DENSE, IDS, ROWS, Draft, Settled, owned_arrays
from ..specification import definition_of
from ..tables.table import Block
from ..wire.messages import buffers
from .journal import Damaged, records, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..shard import Arrays, Shard

    Plain = dict[str, Any]

_FORMAT = 1
_MANIFEST = re.compile(r"manifest-of-[0-9]{1,9}\.json")
_VERSION = re.compile(r"version-[0-9]{1,15}")
_SLOT = "slot:"
_PIECE = 2**20  # bytes that are digested at once


@dataclass(frozen=True)
class Manifest:
    """A checkpoint that was once whole. `sequence`: of its entry. `shares`: size, digest and rows of each server's file.

    `fault` says why the manifest itself cannot be read: then only version, servers and folder are known.
    """

    version: int
    sequence: int
    servers: int
    folder: str
    shares: tuple[Plain, ...]
    fault: str = ""

    @property
    def sizes(self) -> list[int]:
        """The bytes of each share."""
        return [share["bytes"] for share in self.shares]

    def path(self, index: int) -> str:
        return os.path.join(self.folder, share_name(index, self.servers))

    def check(self, index: int, is_digested: bool = True) -> None:
        """Raise Damaged where the share of a server is not the one that was written; without a digest, by its size alone."""
        if self.fault:
            raise Damaged(self.fault)
        path, share = self.path(index), self.shares[index]
        try:
            size = os.path.getsize(path)
        except OSError as error:
            raise Damaged(f"{path}: {error.strerror}") from None
        if size != share["bytes"]:
            raise Damaged(f"{path} has {size:,} bytes, and had {share['bytes']:,}: it was cut short")
        if is_digested and _digest_of(path) != share["digest"]:
            raise Damaged(f"{path} is damaged: its digest is another one than its manifest's")


def share_name(index: int, servers: int) -> str:
    return f"variables-{index}-of-{servers}.ckpt"


def version_folder(directory: str, version: int) -> str:
    return os.path.join(directory, f"version-{version}")


def journal_folder(directory: str, index: int, servers: int) -> str:
    return os.path.join(directory, "journal", f"{index}-of-{servers}")


def manifests(directory: str) -> list[Manifest]:
    """Return the checkpoints of a directory, the newest first; of one whose manifest is damaged, the fault."""
    present: list[Manifest] = []
    for folder in os.scandir(directory) if os.path.isdir(directory) else ():
        if _VERSION.fullmatch(folder.name) and folder.is_dir():
            with contextlib.suppress(FileNotFoundError):  # another server has just removed it
                names = filter(_MANIFEST.fullmatch, os.listdir(folder.path))
                present += [_read_manifest(folder.path, name) for name in names]
    return sorted(present, key=lambda manifest: (manifest.version, manifest.sequence), reverse=True)


def sound_manifests(directory: str, servers: int) -> list[Manifest]:
    """Return the checkpoints of so many servers whose manifests can be read, the newest first."""
    return [known for known in manifests(directory) if known.servers == servers and not known.fault]


def write_manifest(directory: str, version: int, sequence: int, shares: list[Plain]) -> None:
    folder = version_folder(directory, version)
    content = {"format": _FORMAT, "version": version, "sequence": sequence, "shares": shares}
    path = os.path.join(folder, f"manifest-of-{len(shares)}.json")
    with open(create_draft(f"{path}.part"), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.part", path)


def remove_beyond(directory: str, kept: int) -> None:
    """Remove all but the newest checkpoints. A damaged one does not count as one of them. 0: remove none."""
    known = manifests(directory) if kept else []
    sound = list(dict.fromkeys(manifest.folder for manifest in known if not manifest.fault))
    folders = list(dict.fromkeys(manifest.folder for manifest in known))
    if len(sound) > kept:
        for folder in folders[folders.index(sound[kept - 1]) + 1 :]:
            shutil.rmtree(folder, ignore_errors=True)


class Share:
    """The state of a server at one moment. It is made and ended by the thread of the shard, which goes on, and written by any."""

    def __init__(self, shard: Shard) -> None:
        assert shard.definition is not None
        self.version, self.sequence = shard.version, shard.sequence
        settled = {task: [end.attempt, end.step, end.is_accepted] for task, end in shard.settled.items()}
        self._name = share_name(shard.index, shard.servers)
        self._facts = {
            "op": "share", "format": _FORMAT, "index": shard.index, "servers": shard.servers, "version": shard.version,
            "sequence": shard.sequence, "definition": shard.definition.to_plain(), "attempts": {**shard.attempts}, "settled": settled,
            "applied": shard.applied, "job": shard.job, "is_inherited": shard.is_inherited,
        }  # fmt: skip
        slots = [_SLOT + slot for slot in shard.definition.optimizer.slots]
        self._dense = {
            name: owned_arrays({"values": values, **dict(zip(slots, shard.slots[name], strict=True))})
            for name, values in shard.dense.items()
        }
        self._drafts = [(draft_header(draft), owned_arrays(draft.arrays)) for draft in shard.drafts.values()]
        self._tables = {name: (table, table.freeze()) for name, table in shard.tables.items()}

    def write(self, directory: str) -> Plain:
        """Write the file, and return its size, digest and rows for the manifest. Raises OSError.

        One that a former process has written of this moment stays: it may be in a manifest already, and may have rows that no log has,
        since they were only pulled.
        """
        folder = version_folder(directory, self.version)
        make_own_folder(folder)
        path = os.path.join(folder, self._name)
        if (known := _written(path, self.sequence)) is not None:
            return known
        descriptor = create_draft(f"{path}.part", 0o600)
        digest, size, rows = hashlib.blake2b(digest_size=32), 0, 0
        try:
            for header, arrays in self.records():
                parts = buffers(header, arrays, is_checked=True)
                for part in parts:
                    digest.update(part)
                    size += len(part)
                write_all(descriptor, parts)
                if header["op"] == "rows":
                    rows += len(arrays["ids"])
                    os.fdatasync(
                        descriptor
                    )  # in small pieces: a server that is killed ends only behind the present one
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(f"{path}.part", path)
        return {"bytes": size, "digest": digest.hexdigest(), "rows": rows}

    def interrupt(self) -> None:
        """Have `write` raise InterruptedError at its next block of rows."""
        for _, frozen in self._tables.values():
            frozen.interrupt()

    def end(self) -> None:
        for table, frozen in self._tables.values():
            table.thaw(frozen)

    def records(self) -> Iterator[tuple[Plain, Arrays]]:
        """Yield all of it, as a file has it. Raises InterruptedError."""
        yield self._facts, {}
        for name, arrays in self._dense.items():
            for key, array in arrays.items():  # each in a record of its own: with its slots it may be too large for one
                yield {"op": "dense", "name": name}, {key: array}
        for name, (_, frozen) in self._tables.items():
            for block in frozen.blocks():
                slots = {_SLOT + slot: array for slot, array in block.slots.items()}
                yield (
                    {"op": "rows", "table": name},
                    {"ids": block.ids, "values": block.values, "last_used": block.last_used, **slots},
                )
        yield from self._drafts
        yield {"op": "end"}, {}


class Loader:
    """It puts the records of a share into a shard. `is_own`: it is this very server's, so all of it belongs here."""

    def __init__(self, shard: Shard, is_own: bool = True) -> None:
        self._shard, self._is_own = shard, is_own
        self.drafts: list[Draft] = []
        self.is_whole = False

    def take(self, header: Plain, arrays: Arrays) -> None:
        shard = self._shard
        if header["op"] == "share":
            _load_facts(header, shard)
        elif header["op"] == "dense":
            if self._is_own or shard.owns(header["name"]):
                if "values" in arrays:
                    shard.dense[header["name"]], shard.slots[header["name"]] = arrays["values"].copy(), []
                slots = [arrays[_SLOT + name].copy() for name in self._slots() if _SLOT + name in arrays]
                shard.slots[header["name"]] += slots
        elif header["op"] == "rows":
            chosen = slice(None) if self._is_own else arrays["ids"] % shard.servers == shard.index
            named = {name: arrays[_SLOT + name][chosen] for name in self._slots()}
            block = Block(arrays["ids"][chosen], arrays["values"][chosen], named, arrays["last_used"][chosen])
            shard.tables[header["table"]].load(block)
        elif header["op"] == "draft":
            self.drafts.append(draft_of(header, arrays))
        self.is_whole = header["op"] == "end"

    def _slots(self) -> Iterator[str]:
        assert self._shard.definition is not None
        yield from self._shard.definition.optimizer.slots


def load_share(path: str, shard: Shard, is_own: bool = True) -> list[Draft]:
    """Load what a file has of the shard's parameters and rows, and return the drafts that it has. Raises Damaged."""
    loader = Loader(shard, is_own)
    for record in records(path):
        loader.take(record.header, record.arrays())
    if not loader.is_whole:
        raise Damaged(f"{path} has no end")
    return loader.drafts


def draft_of(header: Plain, arrays: Arrays) -> Draft:
    """Return the draft of a message or a record."""
    task, attempt, step = header["name"]
    return Draft(
        (task, attempt, step), header["base"], dict(arrays), header.get("rate"), header.get("is_committed", False)
    )


def draft_header(draft: Draft) -> Plain:
    return {
        "op": "draft",
        "name": list(draft.name),
        "base": draft.base,
        "rate": draft.rate,
        "is_committed": draft.is_committed,
    }


def part_of(draft: Draft, shard: Shard) -> dict[str, Any]:
    """Return those arrays of a draft, and rows of them, that belong to this server, where the draft was for another number of servers."""
    part: dict[str, Any] = {}
    for key, array in draft.arrays.items():
        if key.startswith(DENSE):
            if shard.owns(key.removeprefix(DENSE)):
                part[key] = array
        elif key.startswith(IDS):
            rows = ROWS + key.removeprefix(IDS)
            chosen = array % shard.servers == shard.index
            part[key], part[rows] = array[chosen], draft.arrays[rows][chosen]
    return part


# -- below --


def _digest_of(path: str) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _written(path: str, sequence: int) -> Plain | None:
    """Return size, digest and rows of a whole share; None where there is none, or one of another moment."""
    if not os.path.exists(path):
        return None
    rows = 0
    try:
        for record in records(path):
            if record.header["op"] == "share" and record.header["sequence"] != sequence:
                return None
            if record.header["op"] == "rows":
                rows += len(record.arrays()["ids"])
    except Damaged:
        return None
    return {"bytes": os.path.getsize(path), "digest": _digest_of(path), "rows": rows}


def _read_manifest(folder: str, name: str) -> Manifest:
    """Return what a manifest says, or its fault. Raises FileNotFoundError where it has just been removed."""
    path, servers = os.path.join(folder, name), int(name.removeprefix("manifest-of-").removesuffix(".json"))
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if content["format"] == _FORMAT:
            shares = tuple(
                {**share, "bytes": int(share["bytes"]), "digest": str(share["digest"])} for share in content["shares"]
            )
            if len(shares) != servers:
                raise ValueError("it is of another number of servers")
            return Manifest(int(content["version"]), int(content["sequence"]), servers, folder, shares)
        fault = f"{path} is of format {content['format']}, and {_FORMAT} is the one known here"
    except FileNotFoundError:
        raise
    except OSError as error:
        fault = f"{path}: {error.strerror}"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        fault = f"{path} is damaged: it is {'cut short, or overwritten' if os.path.getsize(path) else 'empty'}"
    return Manifest(int(os.path.basename(folder).removeprefix("version-")), -1, servers, folder, (), fault)


def _load_facts(header: Plain, shard: Shard) -> None:
    if header["format"] != _FORMAT:
        raise Damaged(f"format {header['format']} of a checkpoint, here it is {_FORMAT}")
    if shard.definition is None:
        shard.definition = definition_of(header["definition"])
        shard.tables = {name: shard.definition.make_table(name) for name in shard.definition.tables}
    shard.version, shard.sequence, shard.applied = header["version"], header["sequence"], header["applied"]
    shard.job, shard.is_inherited = header["job"], header["is_inherited"]
    shard.attempts = dict(header["attempts"])
    shard.settled = {task: Settled(*end) for task, end in header["settled"].items()}
