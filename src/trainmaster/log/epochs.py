"""Who is master: epochs, and the signed record that says where the master is.

An epoch is taken by creating `epochs/<n>`, which of all who try only one can. A master takes one before it does
anything else, then reads the log to its end, then writes its first line, which says up to where it has read. An older
master that still lives finds out by `confirm`:

    append a barrier  ->  confirm the epoch  ->  act

in this order. Where no higher epoch was there after the barrier was on stable storage, whoever takes one later reads
that barrier.

The record `master` tells agents the addresses. It is signed with the job's token, so that nobody else who can write the
storage can send them elsewhere; an older record that is put back names a lower epoch, which agents refuse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.plain import Plain
from trainmaster.log.segments import segments
from trainmaster.log.storage import Storage

FOLDER = "epochs"
RECORD = "master"
_TRIES = 1000


def highest(storage: Storage) -> int:
    """The highest epoch that was taken; 0 where none was."""
    return max((int(entry.name) for entry in storage.entries(FOLDER) if entry.name.isdigit()), default=0)


def take(storage: Storage) -> int:
    """Take the next epoch and return it. Its file is empty: on HDFS one with content takes half a second to close."""
    epoch = highest(storage)
    for _ in range(_TRIES):
        epoch += 1
        if storage.create(f"{FOLDER}/{epoch}", b""):
            return epoch
    raise StorageFailed(
        f"could not take an epoch: {_TRIES} in a row were taken",
        place=f"{storage.url}/{FOLDER}",
        anchor="storage-failed",
    )


def settle(storage: Storage, epoch: int) -> bool:
    """Have closed what masters before `epoch` hold open of the log; whether it is: they cannot add to it any more, and every reader sees
    all of it.

    What counts of it can mostly be read before: it was synced, and whoever holds it open acts on no more.
    """
    earlier = [part for number, parts in segments(storage).items() if number < epoch for part in parts]
    closed = [storage.settle(part.path) for part in earlier]  # each is asked for
    return all(closed)


def confirm(storage: Storage, epoch: int) -> bool:
    """Whether no higher epoch was taken: only then may its master act."""
    if storage.appends:  # where one is made by itself they are taken one after the other, so the next one tells
        return not storage.exists(f"{FOLDER}/{epoch + 1}")
    return highest(storage) <= epoch


@attrs.frozen(slots=True, eq=False, repr=False)
class MasterRecord(Plain):
    """Where the master of an epoch is reached. `data` holds what else agents need (the certificate's pin, ...)."""

    epoch: int
    addresses: tuple[str, ...]
    data: Mapping[str, Any] = attrs.field(factory=dict)


def write_master(storage: Storage, record: MasterRecord, token: str) -> bool:
    """Put the record, signed, where it is not there; False, and nothing changed, where a later epoch's is."""
    there = storage.read(RECORD)
    known = None if there is None else _trusted(there, token)
    if known is not None and (known.epoch > record.epoch or known == record):
        return known == record
    storage.replace(RECORD, signed(record, token))
    return True


def newer_master(storage: Storage, token: str, epoch: int) -> MasterRecord | None:
    """The record, where a master after `epoch` may have written it: to ask for epochs costs less than to read it."""
    return read_master(storage, token) if highest(storage) > epoch else None


def read_master(storage: Storage, token: str) -> MasterRecord | None:
    """The record, or None where there is none. Raises BadInput where its signature is not the job's."""
    content = storage.read(RECORD)
    return None if content is None else verified(content, token)


def signed(record: MasterRecord, token: str) -> bytes:
    """The record as one line of JSON, with an HMAC-SHA256 under the job's token over everything else in it."""
    fields = {"v": "1.0", "epoch": record.epoch, "addresses": list(record.addresses), "data": dict(record.data)}
    return json.dumps({**fields, "hmac": _hmac(fields, token)}).encode() + b"\n"


def verified(content: bytes, token: str) -> MasterRecord:
    """The record in `content`. Raises BadInput where it is none, or is signed by another."""
    record = _trusted(content, token)
    if record is None:
        raise BadInput(
            "the record of the master is not signed by this job",
            place=RECORD,
            mend="someone else wrote it, or it is damaged: it is not followed",
            anchor="master-record",
        )
    return record


def _trusted(content: bytes, token: str) -> MasterRecord | None:
    import hmac

    try:
        fields = json.loads(content)
        said = fields.pop("hmac")
        if not hmac.compare_digest(said.encode(), _hmac(fields, token).encode()):
            return None
        return MasterRecord(int(fields["epoch"]), tuple(fields["addresses"]), fields.get("data", {}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _hmac(fields: Mapping[str, Any], token: str) -> str:
    import hashlib
    import hmac

    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hmac.new(token.encode(), b"trainmaster master record\n" + text.encode(), hashlib.sha256).hexdigest()
