"""A storage that has room for so much drops events that snapshots cover: the state is whole, and the gap is told."""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path

import pytest

from trainmaster import __version__
from trainmaster.cli.tm import run
from trainmaster.core.errors import StorageFailed
from trainmaster.core.fold.changes import fold
from trainmaster.core.machine import snapshot
from trainmaster.core.machine.events import Event, decode, encode
from trainmaster.core.machine.state import State
from trainmaster.log.reader import Reader, replay
from trainmaster.log.replay import replayed
from trainmaster.log.segments import segments
from trainmaster.log.snapshots import write_snapshot
from trainmaster.log.storage import LocalStorage
from trainmaster.log.writer import open_writer
from trainmaster.simulation.__main__ import play


class Small(LocalStorage):
    droppable = 2000


@pytest.fixture(scope="module")
def events() -> list[Event]:
    """Of a whole job with several masters."""
    logs = (play(seed).master.log for seed in range(200))
    return next(log for log in logs if len(log) > 100 and len({event.epoch for event in log}) > 2)


def written(storage: LocalStorage, events: list[Event], kept: int, code: str = __version__) -> None:
    """The log, with a snapshot of the first `kept` events; what that covers is dropped, but for the first file of each epoch."""
    for epoch in sorted({event.epoch for event in events}):
        mine = [event for event in events if event.epoch == epoch]
        writer = open_writer(storage, epoch, mine[0].n - 1)
        for event in mine:
            writer.append([encode(event)], sync=True)
        writer.close()
    state = fold(State(), events[:kept])
    write_snapshot(storage, kept, events[kept - 1].epoch, code, json.dumps(snapshot.dump(state)).encode())
    for parts in segments(storage).values():
        for part, after in itertools.pairwise(parts[1:]):
            if after.first - 1 <= kept:
                storage.remove(part.path)


def test_the_state_is_whole_and_the_numbers_have_a_gap(tmp_path: Path, events: list[Event]) -> None:
    storage = Small(tmp_path)
    written(storage, events, len(events) - 20)
    there = [decode(line) for line in replay(Reader(storage), bytes)]
    assert 20 < len(there) < len(events), "nothing was dropped"
    assert there == [event for event in events if event in there]
    assert there[-20:] == events[-20:]
    state, reader = replayed(storage)
    assert snapshot.dump(state) == snapshot.dump(fold(State(), events))
    assert reader.last == events[-1].n
    assert reader.read == reader.read | {events[-1].epoch: events[-1].n}


def test_what_no_snapshot_covers_is_damage(tmp_path: Path, events: list[Event]) -> None:
    storage = Small(tmp_path)
    written(storage, events, len(events) - 20)
    for entry in storage.entries("snapshots"):
        storage.remove(f"snapshots/{entry.name}")
    with pytest.raises(StorageFailed, match="is missing, and later ones are there"):
        list(replay(Reader(storage), bytes))


def test_nor_is_it_dropped_where_there_is_room(tmp_path: Path, events: list[Event]) -> None:
    written(Small(tmp_path), events, len(events) - 20)
    with pytest.raises(StorageFailed, match="is missing, and later ones are there"):
        list(replay(Reader(LocalStorage(tmp_path)), bytes))


def test_a_snapshot_of_another_version_is_no_state(tmp_path: Path, events: list[Event]) -> None:
    storage = Small(tmp_path)
    written(storage, events, len(events) - 20, "0.0.0+other")
    with pytest.raises(StorageFailed, match=r"events \d+ to \d+ were dropped") as told:
        replayed(storage)
    assert told.value.anchor == "events-dropped"


def test_commands_tell_of_the_gap(
    events: list[Event], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LocalStorage, "droppable", 2000)
    job = events[1].data["id"]
    folder = Path(os.environ["TRAINMASTER_STATE_DIR"], "jobs", job)
    folder.mkdir(parents=True)
    (folder / "site.json").write_text("{}")
    written(LocalStorage(folder), events, len(events) - 20)
    with pytest.raises(SystemExit) as ended:
        run(["events", job])
    assert ended.value.code == 0
    shown = capsys.readouterr()
    assert re.search(r"\(events \d+ to \d+ were dropped: this job has no storage of its own\)", shown.err)
    assert shown.out.count("\n") < len(events)
    with pytest.raises(SystemExit) as ended:
        run(["audit", job])
    assert ended.value.code != 0
    assert "nothing can be proven" in capsys.readouterr().err
