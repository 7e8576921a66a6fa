"""Epochs and the record of the master."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainmaster.core.errors import BadInput
from trainmaster.log.epochs import (
    MasterRecord,
    confirm,
    highest,
    newer_master,
    read_master,
    signed,
    take,
    verified,
    write_master,
)
from trainmaster.log.objects import ObjectStorage
from trainmaster.log.storage import storage_for

TOKEN = "3f" * 32


@pytest.mark.parametrize("kind", ["local", "memory", "claims"])
def test_of_many_who_take_an_epoch_each_has_its_own(kind: str, tmp_path: Path) -> None:
    url = str(tmp_path) if kind == "local" else f"memory://{uuid.uuid4()}"

    def contend(index: int) -> list[int]:
        storage = storage_for(url)
        if kind == "claims":
            assert isinstance(storage, ObjectStorage)
            storage._create = storage._claim
        return [take(storage) for _ in range(5)]

    with ThreadPoolExecutor(6) as threads:
        taken = [epoch for epochs in threads.map(contend, range(6)) for epoch in epochs]
    assert len(set(taken)) == 30
    assert highest(storage_for(url)) == max(taken)


def test_only_the_highest_epoch_is_confirmed(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    assert highest(storage) == 0
    assert take(storage) == 1
    assert confirm(storage, 1)
    for epoch in range(2, 12):
        assert take(storage) == epoch
        assert confirm(storage, epoch)
        assert not confirm(storage, epoch - 1)


def test_the_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    assert read_master(storage, TOKEN) is None
    record = MasterRecord(2, ("10.0.0.1:4001", "[fe80::1]:4001"), {"pin": "äb", "unknown": [1.5, None]})
    assert write_master(storage, record, TOKEN)
    assert read_master(storage, TOKEN) == record


def test_an_older_master_does_not_replace_a_newer_ones_record(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    assert write_master(storage, MasterRecord(3, ("c",)), TOKEN)
    assert not write_master(storage, MasterRecord(2, ("b",)), TOKEN)
    assert write_master(storage, MasterRecord(3, ("d",)), TOKEN)
    assert read_master(storage, TOKEN) == MasterRecord(3, ("d",))


def test_a_record_that_stands_is_not_written_again(tmp_path: Path) -> None:
    """Its master makes sure of that: one that was suspended may have put its own there meanwhile."""
    storage = storage_for(tmp_path)
    ours = MasterRecord(3, ("c",))
    assert write_master(storage, ours, TOKEN)
    written = (tmp_path / "master").stat().st_ino
    assert write_master(storage, ours, TOKEN)
    assert (tmp_path / "master").stat().st_ino == written
    storage.replace("master", signed(MasterRecord(2, ("b",)), TOKEN))
    assert write_master(storage, ours, TOKEN)
    assert read_master(storage, TOKEN) == ours
    assert newer_master(storage, TOKEN, 0) is None  # no epoch was taken
    take(storage)
    assert newer_master(storage, TOKEN, 0) == ours
    assert newer_master(storage, TOKEN, 1) is None


def test_a_record_of_another_is_not_followed(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    write_master(storage, MasterRecord(2, ("10.0.0.1:4001",)), TOKEN)
    content = storage.read("master") or b""
    assert TOKEN.encode() not in content
    forgeries = [
        content.replace(b"10.0.0.1", b"10.6.6.6"),
        content.replace(b'"epoch": 2', b'"epoch": 3'),
        content[:-9],
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"hmac": 5}',
        b'{"hmac": "\xc3\xa4"}',
        b"[" * 100_000,
    ]
    for forgery in forgeries:
        with pytest.raises(BadInput, match="not signed"):
            verified(forgery, TOKEN)
    with pytest.raises(BadInput):
        verified(content, "another token")
    storage.replace("master", forgeries[0])
    assert write_master(storage, MasterRecord(1, ("a",)), TOKEN)  # a forged epoch keeps no true master out
