"""Snapshots: a cache that is never believed against the log."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from log_lines import everything, first_line, lines, start_master

from trainmaster.log.reader import replay
from trainmaster.log.replay import restart
from trainmaster.log.snapshots import write_snapshot
from trainmaster.log.storage import LocalStorage, Storage, storage_for


def kept(storage: Storage, code: str) -> bytes | None:
    """The state that a master would begin with."""
    return restart(storage, code)[0]


@pytest.mark.parametrize("url", ["local", "memory"])
def test_a_restart_reads_the_snapshot_and_the_tail(tmp_path: Path, url: str) -> None:
    storage = storage_for(tmp_path if url == "local" else f"memory://{uuid.uuid4()}")
    _, writer = start_master(storage, segment_size=500)
    for n in range(2, 101):
        writer.append(lines(n, n), sync=n % 10 == 0)
    assert restart(storage, "0.1.0")[0] is None
    for n in (20, 40, 70):
        write_snapshot(storage, n, 1, "0.1.0", f"state of {n}".encode())
    assert len(storage.entries("snapshots")) == 2
    state, reader = restart(storage, "0.1.0")
    assert state == b"state of 70"
    assert list(replay(reader, bytes)) == lines(71, 100)
    assert restart(storage, "0.2.0")[0] is None


def test_a_damaged_snapshot_is_passed_over(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    start_master(storage)[1].append(lines(2, 9), sync=True)
    write_snapshot(storage, 5, 1, "0.1.0+dirty/x", b"five")
    write_snapshot(storage, 8, 1, "0.1.0+dirty/x", b"eight")
    path = tmp_path / "snapshots" / "8-1-0.1.0+dirty_x.snapshot"
    content = path.read_bytes()
    assert kept(storage, "0.1.0+dirty/x") == b"eight"
    for size in range(len(content)):
        path.write_bytes(content[:size])
        assert kept(storage, "0.1.0+dirty/x") == b"five"
    path.write_bytes(content.replace(b"eight", b"night"))
    assert kept(storage, "0.1.0+dirty/x") == b"five"
    assert kept(storage, "0.1.0+dirty_x") is None
    for name in os.listdir(tmp_path / "snapshots"):
        os.unlink(tmp_path / "snapshots" / name)
    assert kept(storage, "0.1.0+dirty/x") is None


def test_a_snapshot_of_what_does_not_count_is_passed_over(tmp_path: Path) -> None:
    """A master that was cut off wrote on, and kept a snapshot of it; its successor never read that."""
    storage = LocalStorage(tmp_path)
    storage.replace("events/1-1.jsonl", b"".join(lines(1, 60)))
    write_snapshot(storage, 40, 1, "c", b"forty")
    write_snapshot(storage, 60, 1, "c", b"sixty")
    assert kept(storage, "c") == b"sixty"
    storage.replace("events/2-51.jsonl", first_line(51, 2, {1: 50}))
    assert kept(storage, "c") == b"forty"
    write_snapshot(storage, 51, 2, "c", b"fifty-one")
    assert kept(storage, "c") == b"fifty-one"
    assert len(everything(storage)) == 51
