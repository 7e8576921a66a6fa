"""Appending: what was acknowledged is there, once, whatever fails in between."""

from __future__ import annotations

import errno
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_lines import everything, first_line, line, lines, start_master

from trainmaster.core.errors import StorageFailed
from trainmaster.log.objects import ObjectStorage
from trainmaster.log.segments import number
from trainmaster.log.storage import Appender, LocalStorage, storage_failed, storage_for
from trainmaster.log.writer import OBJECTS_LIMIT, open_writer

pytestmark = pytest.mark.usefixtures("crashed_writers_are_closed")

TESTS = Path(__file__).parents[1]


def test_what_is_appended_is_read_in_order(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    writer = open_writer(storage, 1, 0)
    writer.append(lines(1, 3), sync=True)
    assert (writer.last, writer.stable) == (3, 3)
    writer.append(lines(4, 5), sync=False)
    assert (writer.last, writer.stable) == (5, 3)
    assert everything(storage) == lines(1, 5)  # a note is read before it is stable
    writer.flush()
    assert writer.stable == 5
    writer.close()
    assert os.listdir(tmp_path / "events") == ["1-1.jsonl"]


def test_a_call_may_be_repeated(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    writer = open_writer(storage, 1, 0)
    writer.append(lines(1, 3), sync=True)
    writer.append(lines(2, 5), sync=True)
    writer.append(lines(1, 2), sync=True)
    assert everything(storage) == lines(1, 5)


@pytest.mark.parametrize(
    "bad", [[line(3)], [line(1), line(3)], [line(1)[:-1]], [b"{}\n"], [b"x\n"], [line(1) + line(2)]]
)
def test_lines_that_do_not_go_on_are_refused(tmp_path: Path, bad: list[bytes]) -> None:
    storage = storage_for(tmp_path)
    writer = open_writer(storage, 1, 0)
    with pytest.raises(ValueError, match=r".+"):
        writer.append(bad, sync=True)
    writer.append(lines(1, 2), sync=True)
    assert everything(storage) == lines(1, 2)


def test_segments_roll_at_their_size(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    writer = open_writer(storage, 1, 0, segment_size=500)
    for n in range(1, 41):
        writer.append([line(n)], sync=False)
    writer.close()
    sizes = [entry.size for entry in storage.entries("events")]
    assert len(sizes) > 5
    assert max(sizes) < 500 + len(line(40))
    assert everything(storage) == lines(1, 40)


def test_a_caller_that_never_flushes_does_not_fill_the_memory(tmp_path: Path) -> None:
    writer = open_writer(storage_for(tmp_path), 1, 0)
    for n in range(1, 12):
        writer.append([line(n, text="x" * 1_000_000)], sync=False)
    assert writer.stable >= 5
    writer.close()


# -- a crash at any byte --


def test_a_crash_at_any_byte_leaves_the_whole_lines_and_the_next_master_goes_on(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    writer = open_writer(storage, 1, 0)
    written = [first_line(1, 1, {})] + [line(n, text="ä\u2028" * (n % 3)) for n in range(2, 7)]
    writer.append(written, sync=True)
    writer.close()
    content = storage.read("events/1-1.jsonl")
    assert content is not None
    for size in range(len(content) + 1):
        again = LocalStorage(tmp_path / str(size))
        again.create("epochs/1", b"")
        again.replace("events/1-1.jsonl", content[:size], durable=False)
        whole = content[:size].count(b"\n")
        assert everything(again) == written[:whole]
        epoch, successor = start_master(again)
        successor.append([line(whole + 2, epoch)], sync=True)
        with open(tmp_path / str(size) / "events" / "1-1.jsonl", "ab") as late:
            late.write(content[size:] + line(7))  # the old master was not dead after all
        successor.append([line(whole + 3, epoch)], sync=True)
        found = everything(again)
        assert found[:whole] == written[:whole]
        assert [number(one) for one in found] == list(range(1, whole + 4))
        assert found[whole + 1 :] == [line(whole + 2, epoch), line(whole + 3, epoch)]


def test_zeros_at_the_end_are_no_lines(tmp_path: Path) -> None:
    """After a power cut a file may be longer than what reached the disk."""
    storage = LocalStorage(tmp_path)
    storage.replace("events/1-1.jsonl", b"".join(lines(1, 3)) + bytes(4096) + b"\n" + line(5))
    assert everything(storage) == lines(1, 3)
    storage.replace("events/1-1.jsonl", b"".join(lines(1, 3)) + bytes(4096))
    assert everything(storage) == lines(1, 3)


def test_kill_9_loses_no_acknowledged_barrier(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    command = [sys.executable, str(TESTS / "programs" / "append_events.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])}
    acknowledged = 0
    for epoch in range(1, 7):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as program:
            assert program.stdout is not None
            try:
                for _ in range(draw.randrange(1, 120)):
                    acknowledged = int(program.stdout.readline())
            finally:
                program.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, program.stdout.read().split())])
        found = everything(storage_for(tmp_path))
        assert [number(one) for one in found] == list(range(1, len(found) + 1))
        assert len(found) >= acknowledged
        assert found[acknowledged - 1].endswith(b"}\n")
        assert sum(b'"master-started"' in one for one in found) == epoch


# -- a full disk, a real one --


@attrs.frozen
class SmallDisk:
    path: Path
    fill: Callable[[], None]
    relieve: Callable[[], None]


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """64 KiB of disk; where we may not mount one, a limit on the size of files, which stops a write in its midst too."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(path)], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        try:
            yield SmallDisk(path, lambda: None, lambda: os.unlink(path / "ballast"))
        finally:
            subprocess.run(["umount", "-l", str(path)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> Callable[[], None]:
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    try:
        yield SmallDisk(path, limit(40_000), limit(soft))
    finally:
        limit(soft)()


def test_a_full_disk_stops_the_log_and_room_lets_it_go_on(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        (disk.path / "ballast").write_bytes(bytes(16_384))
        disk.fill()
        _fill_and_go_on(disk.path, disk.relieve)


def test_a_limit_on_file_sizes_stops_the_log_and_lifting_it_lets_it_go_on(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_001, hard))
    try:
        _fill_and_go_on(tmp_path, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _fill_and_go_on(path: Path, relieve: Callable[[], None]) -> None:
    storage = storage_for(path / "job")
    epoch, writer = start_master(storage)
    failure = None
    batch: list[bytes] = []
    while failure is None:
        batch = [line(writer.last + k, epoch, "x" * 700) for k in range(1, 4)]
        assert writer.last < 200, "the disk does not fill"
        try:
            writer.append(batch, sync=writer.last % 2 == 0)
        except StorageFailed as caught:
            failure = caught
    assert failure.anchor == "disk-full"
    assert str(path) in str(failure)
    kept = writer.last
    assert [number(one) for one in everything(storage)] == list(range(1, kept + 1))  # nothing of the batch that failed
    with pytest.raises(StorageFailed):
        writer.append(batch, sync=True)
    relieve()
    batch.append(line(kept + 4, epoch))
    writer.append(batch, sync=True)
    found = everything(storage)
    assert [number(one) for one in found] == list(range(1, kept + 5))
    assert found[kept:] == batch
    writer.close()


# -- faults of every kind, in any order, and a crash of the machine --


class Faulty(LocalStorage):
    """A disk that fails as told, and knows what a crash of the machine may leave of each file."""

    def __init__(self, root: Path, draw: random.Random) -> None:
        super().__init__(root)
        self.draw, self.rate, self.synced = draw, 0.0, dict[str, int]()

    def fails(self) -> bool:
        return self.draw.random() < self.rate

    def broken(self, doing: str, path: str) -> StorageFailed:
        return storage_failed(doing, path, OSError(self.draw.choice([errno.ENOSPC, errno.EIO]), "told to fail"))

    def appender(self, path: str) -> Appender:
        if self.fails():
            raise self.broken("create", path)
        self.synced[path] = 0
        return FaultyAppender(self, path, super().appender(path))

    def replace(self, path: str, data: bytes, durable: bool = True) -> None:
        if self.fails():
            raise self.broken("write", path)
        super().replace(path, data, durable)
        self.synced[path] = len(data)

    def sync(self, path: str) -> None:
        self.synced[path] = len(self.read(path) or b"")

    def crash(self) -> None:
        """Cut the power: behind what was synced, anything may be there."""
        for path, synced in self.synced.items():
            content = self.read(path)
            if content is not None and len(content) > synced:
                end = self.draw.randrange(synced, len(content) + 1)
                tail = self.draw.choice([b"", bytes(10), b"\n", content[synced : synced + 30]])
                super().replace(path, content[:end] + tail, durable=False)
                self.sync(path)


class FaultyAppender:
    def __init__(self, storage: Faulty, path: str, true: Appender) -> None:
        self.storage, self.path, self.true = storage, path, true
        self.size = 0

    def write(self, data: bytes) -> None:
        if self.storage.fails():
            self.true.write(data[: self.storage.draw.randrange(len(data))])
            raise self.storage.broken("append", self.path)
        self.true.write(data)
        self.size += len(data)

    def sync(self) -> None:
        if self.storage.fails():
            synced = self.storage.synced[self.path]
            content = self.storage.read(self.path) or b""
            # Pages that could not be written, dropped and read again.
            with open(self.storage._at(self.path), "r+b") as file:
                file.seek(synced)
                file.write(bytes(len(content) - synced) if self.storage.draw.random() < 0.5 else content[synced:])
            raise self.storage.broken("sync", self.path)
        self.true.sync()
        self.storage.synced[self.path] = self.size

    def truncate(self, size: int) -> None:
        if self.storage.fails():
            raise self.storage.broken("truncate", self.path)
        self.true.truncate(size)
        self.size = size

    def hold(self, size: int) -> None:
        if self.storage.fails():
            raise self.storage.broken("append", self.path)
        self.true.hold(size)

    def close(self) -> None:
        self.true.close()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_fails_what_was_acknowledged_is_there_once(tmp_path_factory: Any, seed: int) -> None:
    draw = random.Random(seed)
    storage = Faulty(tmp_path_factory.mktemp("job"), draw)
    acknowledged: list[bytes] = []  # stable: must survive everything
    for _ in range(3):
        storage.rate = 0.0
        epoch, writer = start_master(storage, segment_size=600)
        told = everything(storage)
        assert told[: len(acknowledged)] == acknowledged
        for _ in range(draw.randrange(30)):
            storage.rate = draw.choice([0.0, 0.3, 0.6])
            batch = [line(writer.last + k, epoch, "ä" * draw.randrange(9)) for k in range(1, draw.randrange(2, 5))]
            for tries in itertools.count():
                assert tries < 500, "it does not go on although nothing fails any more"
                try:
                    writer.append(batch, sync=draw.random() < 0.5)
                    break
                except StorageFailed:
                    batch += [line(writer.last + len(batch) + 1, epoch)] * (draw.random() < 0.2)
                    storage.rate *= 0.9 if tries < 50 else 0.0
            told += batch
            acknowledged = told[: writer.stable]
            if storage.rate == 0.0:
                storage_now = LocalStorage(storage.root)
                assert everything(storage_now)[: writer.stable] == acknowledged
        killed = draw.random() < 0.5  # else the power is cut
        if not killed:
            storage.crash()
        survived = everything(storage)
        assert survived[: len(acknowledged)] == acknowledged
        assert survived == told[: len(survived)]
        assert len(survived) == len(told) or not killed


# -- objects --


def objects(claims: bool = False) -> ObjectStorage:
    storage = ObjectStorage(f"memory://{uuid.uuid4()}")
    if claims:
        storage._create = storage._claim
    return storage


@pytest.mark.parametrize("claims", [False, True])
def test_objects_are_segments_of_a_batch(claims: bool) -> None:
    storage = objects(claims)
    epoch, writer = start_master(storage)
    writer.append(lines(2, 3), sync=False)
    assert len(everything(storage)) == 1
    writer.append(lines(4, 5), sync=True)
    writer.append(lines(6, 6), sync=False)
    writer.flush()
    assert [entry.name for entry in storage.entries("events")] == ["1-1.jsonl", "1-2.jsonl", "1-6.jsonl"]
    assert everything(storage)[1:] == lines(2, 6)
    _, successor = start_master(storage)
    writer.append(lines(7, 9), sync=True)
    successor.append(lines(8, 9, epoch=2), sync=True)
    assert everything(storage)[7:] == lines(8, 9, epoch=2)
    assert epoch == 1


def test_a_put_whose_answer_was_lost_is_not_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = objects()
    true, answers = storage.create, [False, True]

    def create(path: str, data: bytes) -> bool:
        made = true(path, data)
        if not answers.pop(0):
            raise storage_failed("create", path, TimeoutError("no answer"))
        return made

    writer = open_writer(storage, 1, 0)
    monkeypatch.setattr(storage, "create", create)
    writer.append(lines(1, 2), sync=False)
    with pytest.raises(StorageFailed):
        writer.append(lines(3, 4), sync=True)
    assert (writer.last, writer.stable) == (2, 0)
    monkeypatch.undo()
    writer.append(lines(3, 6), sync=True)
    assert everything(storage) == lines(1, 6)


def test_two_masters_of_one_epoch_are_found_out() -> None:
    storage = objects()
    one, other = open_writer(storage, 1, 0), open_writer(storage, 1, 0)
    one.append([line(1, text="one")], sync=True)
    with pytest.raises(StorageFailed, match="another master"):
        other.append([line(1, text="other")], sync=True)


def test_many_small_objects_are_put_together() -> None:
    storage = objects()
    writer = open_writer(storage, 1, 0)
    count = OBJECTS_LIMIT * 2 + 9
    for n in range(1, count + 1):
        writer.append([line(n)], sync=True)
        if n % 40 == 0:
            assert everything(storage) == lines(1, n)
    assert len(storage.entries("events")) < OBJECTS_LIMIT
    assert everything(storage) == lines(1, count)


def test_putting_together_may_stop_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = objects()
    writer = open_writer(storage, 1, 0)
    for n in range(1, OBJECTS_LIMIT + 1):
        writer.append([line(n)], sync=True)
    true, left = storage.remove, [5]

    def remove(path: str) -> None:
        if not left[0]:
            raise storage_failed("remove", path, OSError("gone away"))
        left[0] -= 1
        true(path)

    monkeypatch.setattr(storage, "remove", remove)
    n = OBJECTS_LIMIT + 1
    for _ in range(2):
        with pytest.raises(StorageFailed):
            writer.append([line(n)], sync=True)
        assert everything(storage) == lines(1, n - 1)
    left[0] = 1000
    writer.append([line(n)], sync=True)
    assert everything(storage) == lines(1, n)
    assert len(storage.entries("events")) == 2
    storage.replace("events/1-50.jsonl", line(50))  # a put that lands late, after its object was put elsewhere
    assert everything(storage) == lines(1, n)
