"""The course of a job out of its log: it passes over what tells nothing, and misses nothing that does."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from log_lines import line, start_master

from trainmaster.core.errors import StorageFailed
from trainmaster.core.machine.events import Event, decode, encode
from trainmaster.core.timeline import Timeline
from trainmaster.log.history import course
from trainmaster.log.history.course import Course
from trainmaster.log.reader import Reader, replay
from trainmaster.log.storage import LocalStorage
from trainmaster.log.writer import Writer, open_writer
from trainmaster.simulation.__main__ import play


def event(n: int, kind: str, epoch: int = 1, **data: Any) -> bytes:
    return encode(Event(n, 1000.0 + n, epoch, kind, data))


def started(n: int, attempt: int, epoch: int = 1) -> bytes:
    return event(n, "started", epoch, task="worker:0", attempt=attempt, pid=7, elapsed=1.0)


@pytest.mark.parametrize("chunk", [200, 4096, 1 << 20])
def test_a_course_is_that_of_all_events(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a chunk ends within a decision of several events."""
    monkeypatch.setattr(course, "Reader", lambda storage: Reader(storage, chunk=chunk))
    for seed in (91, 2246):
        storage = LocalStorage(tmp_path / str(seed))
        log = play(seed).master.log
        writer = open_writer(storage, 1, 0)
        writer.append([encode(Event(old.n, old.at, 1, old.type, old.data)) for old in log], sync=True)
        whole = Timeline()
        for one in replay(Reader(storage), decode):
            whole.take(one)
        assert Course(storage).read() == whole


def test_a_course_goes_on_where_it_stopped(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    writer = open_writer(storage, 1, 0)
    known = Course(storage)
    assert known.read().n == 0
    writer.append([started(1, 1), line(2)], sync=True)
    assert known.read().n == 2
    writer.append([started(3, 2)], sync=True)
    timeline = known.read()
    assert list(timeline.attempts) == [("worker:0", 1), ("worker:0", 2)]


def test_a_decision_is_complete_by_an_event_that_tells_nothing(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    writer = open_writer(storage, 1, 0)
    kill = event(1, "kill-requested", by="anna", why="", rest=1)
    writer.append([kill, line(2), line(3), event(4, "master-started", 2, read={}, place="")], sync=True)
    assert [mark.kind for mark in Course(storage).read().marks] == ["user", "master"]


def test_lines_that_a_later_master_had_not_read_count_for_nothing(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    epoch, writer = start_master(storage)
    writer.append([started(2, 1, epoch)], sync=True)
    known = Course(storage)
    known.read()
    later, successor = start_master(storage)
    writer.append([started(3, 9, epoch)], sync=True)  # by the old master, which has not noticed
    successor.append([started(4, 2, later)], sync=True)
    timeline = known.read()
    assert [number for _, number in timeline.attempts] == [1, 2]
    assert [master.epoch for master in timeline.epochs] == [1, 2]


def test_a_line_that_is_cut_short_is_not_there_yet_and_one_in_the_middle_is_damage(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    writer = open_writer(storage, 1, 0)
    writer.append([started(1, 1), started(2, 2)], sync=True)
    [path] = list(tmp_path.rglob("*.jsonl"))
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    assert Course(storage).read().n == 1
    path.write_bytes(content.replace(b'"type"', b'"tope"') + line(3))
    with pytest.raises(StorageFailed, match="line 1"):
        Course(storage).read()


def long_log(writer: Writer, events: int) -> None:
    """Write a log such as a job of weeks has: progress, shards, leases of masters, a checkpoint set each minute, a restart now and then."""
    batch: list[bytes] = []
    attempt = 1
    for n in range(1, events + 1):
        task = f"worker:{n % 8}"
        if n % 100 == 0:
            row = event(
                n, "checkpoint-saved", task="worker:0", attempt=attempt, report=n, set=n // 100, files=3, bytes=10**9
            )
        elif n % 20_000 == 1:
            attempt = n // 20_000 + 1
            row = event(n, "started", task=task, attempt=attempt, report=n, pid=n, elapsed=0.5)
        elif n % 3:
            done = {"ranges": [[n, n + 1]], "records": [1024], "mark": n}
            row = event(n, "shards-done", task=task, attempt=attempt, report=n, input="train", **done)
        else:
            row = event(n, "progressed", task=task, attempt=attempt, report=n, value=None, step=n)
        batch.append(row)
        if len(batch) == 10_000:
            writer.append(batch, sync=False)
            batch = []
    writer.append(batch, sync=True)


@pytest.mark.full
def test_the_course_of_a_million_events_is_read_in_seconds(tmp_path: Path) -> None:
    """Seen: 1.5 s of a core."""
    storage = LocalStorage(tmp_path)
    long_log(open_writer(storage, 1, 0), 1_000_000)
    began = time.process_time()
    timeline = Course(storage).read()
    seconds = time.process_time() - began
    assert timeline.n == 1_000_000
    assert timeline.counts["checkpoint"] == 10_000
    assert seconds < 10.0, f"it took {seconds:.1f} s of a core"


@pytest.mark.full
def test_reading_the_course_of_a_long_log_stays_small(tmp_path: Path) -> None:
    """Seen: 3.4 MiB, most of it the chunk of the log that is read."""
    storage = LocalStorage(tmp_path)
    long_log(open_writer(storage, 1, 0), 100_000)
    tracemalloc.start()
    try:
        Course(storage).read()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * 2**20, f"{peak / 2**20:.1f} MiB"
