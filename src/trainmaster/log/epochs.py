"""Epochs decide who is master, and a signed record says where the master is.

A master takes an epoch by creating `epochs/<n>`, in which only one of all that try succeeds. It does so before
anything else, then reads the log to its end, then writes its first line, which says up to where it has read. An older
master that still lives finds out by `confirm`:

    append a barrier  ->  confirm the epoch  ->  act

in this order. Where there was no higher epoch after the barrier was on stable storage, a master that takes one later
reads that barrier.

The record `master` tells agents the addresses. It is signed with the job's token, so that nobody else who can write the
storage can send them elsewhere; an older record that is put back names a lower epoch, which agents refuse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.foreign import json_in, numbers_in
from trainmaster.core.plain import Plain
from trainmaster.log.segments import segments
from trainmaster.log.storage import Storage

FOLDER = "epochs"
RECORD = "master"
_TRIES = 1000
_MOST = 10**9  # no job has had so many masters: somebody else has written such a name


def highest(storage: Storage) -> int:
    """Return the highest epoch that was taken; 0 where none was."""
    epochs = numbers_in(entry.name for entry in storage.entries(FOLDER))
    return max((epoch for epoch in epochs if epoch < _MOST), default=0)


def file(epoch: int) -> str:
    """Return the path of the file by which a master has taken an epoch."""
    return f"{FOLDER}/{epoch}"


def take(storage: Storage) -> int:
    """Take the next epoch and return it. Its file is empty: on HDFS one with content takes half a second to close."""
    epoch = highest(storage)
    for _ in range(_TRIES):
        epoch += 1
        if storage.create(file(epoch), b""):
            return epoch
    raise StorageFailed(
        f"could not take an epoch: {_TRIES} in a row were taken",
        place=f"{storage.url}/{FOLDER}",
        anchor="storage-failed",
    )


def settle(storage: Storage, epoch: int) -> bool:
    """Close the files of the log that masters before `epoch` hold open. Return True once all are closed: those masters cannot add to them
    any more, and every reader sees all of them.

    The lines that count can mostly be read before: they were synced, and a master acts on synced lines only.
    """
    earlier_parts = [part for number, parts in segments(storage).items() if number < epoch for part in parts]
    closed = [storage.settle(part.path) for part in earlier_parts]  # a list: each of them is settled
    return all(closed)


def confirm(storage: Storage, epoch: int) -> bool:
    """Tell whether no higher epoch was taken: only then may the epoch's master act."""
    if storage.appends:  # here epochs are taken one after the other, so a look for the next one is enough
        return not storage.exists(file(epoch + 1))
    return highest(storage) <= epoch


@attrs.frozen(slots=True, eq=False, repr=False)
class MasterRecord(Plain):
    """The addresses of the master of an epoch. `data` holds what else agents need (the certificate's pin, ...)."""

    epoch: int
    addresses: tuple[str, ...]
    data: Mapping[str, Any] = attrs.field(factory=dict)


def write_master(storage: Storage, record: MasterRecord, token: str) -> bool:
    """Write the record, signed, unless it is there already. Return False, and change nothing, where a later epoch's record is there."""
    content = storage.read(RECORD)
    current = None if content is None else _parse_trusted(content, token)
    if current is not None and (current.epoch > record.epoch or current == record):
        return current == record
    storage.replace(RECORD, signed(record, token))
    return True


def newer_master(storage: Storage, token: str, epoch: int) -> MasterRecord | None:
    """Return the record if a master after `epoch` may have written it, else None: listing epochs costs less than reading the record."""
    return read_master(storage, token) if highest(storage) > epoch else None


def read_master(storage: Storage, token: str) -> MasterRecord | None:
    """Return the record, or None where there is none. Raises BadInput where its signature is not the job's."""
    content = storage.read(RECORD)
    return None if content is None else verified(content, token)


def signed(record: MasterRecord, token: str) -> bytes:
    """Return the record as one line of JSON, with an HMAC-SHA256 under the job's token over everything else in it."""
    fields = {"v": "1.0", "epoch": record.epoch, "addresses": list(record.addresses), "data": dict(record.data)}
    return json.dumps({**fields, "hmac": _hmac(fields, token)}).encode() + b"\n"


def verified(content: bytes, token: str) -> MasterRecord:
    """Return the record in `content`. Raises BadInput where it is not a record, or has another job's signature."""
    record = _parse_trusted(content, token)
    if record is None:
        raise BadInput(
            "the record of the master is not signed by this job",
            place=RECORD,
            mend="someone else wrote it, or it is damaged: it is not followed",
            anchor="master-record",
        )
    return record


def _parse_trusted(content: bytes, token: str) -> MasterRecord | None:
    import hmac

    try:
        fields = json_in(content)
        signature = fields.pop("hmac")
        if not hmac.compare_digest(signature.encode(), _hmac(fields, token).encode()):
            return None
        return MasterRecord(int(fields["epoch"]), tuple(fields["addresses"]), fields.get("data", {}))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _hmac(fields: Mapping[str, Any], token: str) -> str:
    import hashlib
    import hmac

    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hmac.new(token.encode(), b"trainmaster master record\n" + text.encode(), hashlib.sha256).hexdigest()
