"""Reading: epochs, growth, places, damage."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_lines import everything, first_line, line, lines, start_master

from trainmaster.core.errors import StorageFailed
from trainmaster.core.machine.events import decode
from trainmaster.log.reader import Reader, replay
from trainmaster.log.segments import number
from trainmaster.log.storage import LocalStorage, Storage, storage_for
from trainmaster.log.writer import open_writer

pytestmark = pytest.mark.usefixtures("crashed_writers_are_closed")


def put(storage: Storage, epoch: int, first: int, content: list[bytes], torn: bytes = b"") -> None:
    storage.replace(f"events/{epoch}-{first}.jsonl", b"".join(content) + torn, durable=False)


def test_an_empty_log_has_no_lines(tmp_path: Path) -> None:
    reader = Reader(storage_for(tmp_path))
    assert reader.poll() is None
    assert (reader.last, reader.epoch, reader.read) == (0, -1, {})


def test_later_epochs_say_what_counts_of_earlier_ones(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    put(storage, 1, 1, [first_line(1, 1, {}), *lines(2, 9)], torn=b'{"v":"1.0","n":10,')
    put(storage, 2, 6, [first_line(6, 2, {1: 5}), *lines(7, 8, 2)])
    put(storage, 3, 7, [first_line(7, 3, {1: 5, 2: 6})])
    found = [decode(one) for one in everything(storage)]
    assert [(event.n, event.epoch) for event in found] == [(n, 1) for n in range(1, 6)] + [(6, 2), (7, 3)]
    reader = Reader(storage)
    list(replay(reader, bytes))
    assert reader.read == {1: 5, 2: 6, 3: 7}
    assert reader.holds(1, 5)
    assert reader.holds(2, 6)
    assert reader.holds(3, 99)
    assert not reader.holds(1, 6)
    assert not reader.holds(2, 7)


def test_an_epoch_that_nobody_read_does_not_count(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    put(storage, 1, 1, lines(1, 4))
    put(storage, 3, 5, [first_line(5, 3, {1: 4})])
    put(storage, 2, 5, [first_line(5, 2, {1: 4}), line(6, 2)])  # it was cut off from taking its epoch to its first line
    assert [decode(one).epoch for one in everything(storage)] == [1, 1, 1, 1, 3]


def test_a_torn_first_line_is_no_epoch(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    put(storage, 1, 1, lines(1, 4))
    put(storage, 2, 3, [], torn=first_line(3, 2, {1: 2})[:-1])
    assert everything(storage) == lines(1, 4)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_history_of_masters_reads_as_it_was(tmp_path_factory: Any, data: st.DataObject) -> None:
    storage = LocalStorage(tmp_path_factory.mktemp("job"))
    true: list[bytes] = []
    writers = []
    for _ in range(data.draw(st.integers(1, 4), "masters")):
        epoch, writer = start_master(storage, data.draw(st.sampled_from([200, 10_000])))
        true = [*true, everything(storage)[-1]]
        for count in data.draw(st.lists(st.integers(1, 5), max_size=4), "batches"):
            batch = lines(writer.last + 1, writer.last + count, epoch)
            writer.append(batch, sync=False)
            true += batch
        for old_epoch, old in writers:
            late = lines(old.last + 1, old.last + data.draw(st.integers(0, 3), "late"), old_epoch)
            old.append(late, sync=False)
        writers.append((epoch, writer))
        chunk = data.draw(st.sampled_from([64, 300, 1 << 20]), "chunk")
        assert list(replay(Reader(storage, chunk=chunk), bytes)) == true
    for n in range(len(true) + 1):
        assert list(replay(Reader(storage, after=n, chunk=64), bytes)) == true[n:]


def test_a_follower_goes_back_where_a_late_master_was_not_read(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    put(storage, 1, 1, lines(1, 8))
    reader = Reader(storage)
    assert len(list(replay(reader, bytes))) == 8
    put(storage, 2, 6, [first_line(6, 2, {1: 5}), line(7, 2)])
    assert [(decode(one).n, decode(one).epoch) for one in replay(reader, bytes)] == [(6, 2), (7, 2)]
    put(storage, 3, 6, [first_line(6, 3, {1: 5}), *lines(7, 9, 3)])
    assert [(decode(one).n, decode(one).epoch) for one in replay(reader, bytes)] == [(n, 3) for n in (6, 7, 8, 9)]


def test_a_line_appears_when_it_is_whole(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    reader = Reader(storage, chunk=50)
    content = b"".join(lines(1, 3))
    seen = []
    for size in range(len(content) + 1):
        storage.replace("events/1-1.jsonl", content[:size], durable=False)
        seen += list(replay(reader, bytes))
        assert len(seen) == content[:size].count(b"\n")
    assert seen == lines(1, 3)


def test_a_line_may_be_longer_than_a_chunk(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    written = [line(1, text="x" * 10_000), line(2), line(3, text="y" * 500)]
    put(storage, 1, 1, written)
    assert list(replay(Reader(storage, chunk=64), bytes)) == written


@pytest.mark.parametrize("missing", ["segment", "line", "earlier epoch", "beginning"])
def test_what_is_missing_in_the_midst_is_damage(tmp_path: Path, missing: str) -> None:
    storage = storage_for(tmp_path)
    put(storage, 1, 1, lines(1, 3 if missing == "line" else 4))
    put(storage, 1, 5, lines(5, 8))
    put(storage, 1, 9, lines(9, 10))
    put(storage, 2, 11, [first_line(11, 2, {1: 10})])
    gone = {"segment": [5], "line": [], "earlier epoch": [1, 5, 9], "beginning": [1]}[missing]
    for first in gone:
        storage.remove(f"events/1-{first}.jsonl")
    with pytest.raises(StorageFailed, match="damaged: event"):
        everything(storage)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    storage = storage_for(tmp_path)
    put(storage, 1, 1, lines(1, 2))
    storage.replace("events/notes.txt", b"x")
    storage.replace("events/1-1.jsonl.bak", b"x")
    assert everything(storage) == lines(1, 2)


@pytest.mark.parametrize("url", ["local", "memory"])
def test_each_line_is_seen_at_the_first_look_after_it_was_written(tmp_path: Path, url: str) -> None:
    storage = storage_for(tmp_path if url == "local" else f"memory://{uuid.uuid4()}")
    writer = open_writer(storage, 1, 0, segment_size=300)
    reader = Reader(storage)
    for n in range(1, 21):
        assert reader.poll() is None
        writer.append([line(n)], sync=True)
        assert [number(one) for one in replay(reader, bytes)] == [n]


def test_reading_while_a_master_writes_and_rolls(tmp_path: Path) -> None:
    """Two threads: the listing and the files change under the reader's hands."""
    storage = storage_for(tmp_path)
    count = 3000

    def write() -> None:
        writer = open_writer(storage, 1, 0, segment_size=2000)
        for n in range(1, count + 1):
            writer.append([line(n)], sync=False)
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        reader, seen = Reader(storage, chunk=4096), list[bytes]()
        while thread.is_alive():
            seen += replay(reader, bytes)
    finally:
        thread.join()
    seen += replay(reader, bytes)
    assert seen == lines(1, count)
