"""The master's pen and what hangs on it: the epoch, acknowledgements, room on a full disk, and the beginning from a snapshot."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from log_lines import first_line, line, start_master
from scripted import Script, job, role
from waiting import until_async

from trainmaster import __version__
from trainmaster.core.decide.drive import Drive
from trainmaster.core.errors import StorageFailed
from trainmaster.core.fold.changes import fold
from trainmaster.core.machine import snapshot, stimuli
from trainmaster.core.machine.events import Event, decode, encode
from trainmaster.core.machine.state import State
from trainmaster.host import linux
from trainmaster.log import epochs, replay
from trainmaster.log.reader import Reader
from trainmaster.log.replay import replayed
from trainmaster.log.snapshots import write_snapshot
from trainmaster.log.storage import LocalStorage
from trainmaster.log.writer import open_writer
from trainmaster.master import record
from trainmaster.master.record import Record, Superseded
from trainmaster.master.shell import Shell

EVENT = decode(first_line(1, 1, {}))


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def pen(storage: LocalStorage, confirm: Callable[[], bool]) -> tuple[Record, list[str]]:
    told: list[str] = []
    return Record(open_writer(storage, 1, 0), confirm, told.append), told


def test_a_storage_that_answers_slowly_holds_nobody_up(storage: LocalStorage) -> None:
    answers = threading.Event()

    async def act() -> None:
        made, _ = pen(storage, lambda: answers.wait(60))
        writing = asyncio.create_task(made.append([EVENT], sync=True, limit=None))
        await until_async(lambda: storage.entries("events"))
        assert not writing.done()
        answers.set()
        await writing
        await made.durable(1)
        await made.close()

    asyncio.run(act())


def test_a_storage_that_hangs_is_waited_for_in_words_and_not_for_ever(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SILENT", "_RETRY", "CLOSED_WITHIN"):
        monkeypatch.setattr(record, name, 0.01)
    answers = threading.Event()

    async def act() -> None:
        made, told = pen(storage, lambda: answers.wait(60))
        writing = asyncio.create_task(made.append([EVENT], sync=True, limit=1000))
        await until_async(lambda: told)
        assert "it has not answered for" in told[-1]
        assert not writing.done()
        answers.set()
        await writing
        assert told[-1] == ""
        answers.clear()
        with pytest.raises(StorageFailed, match="has not answered"):
            await made.append([decode(line(2))], sync=True, limit=0.1)
        with pytest.raises(StorageFailed, match="has not answered"):
            await made.close()
        answers.set()

    asyncio.run(act())


@pytest.mark.parametrize("lands", [True, False], ids=["landed late", "never came"])
def test_what_was_given_up_is_written_once_where_the_storage_is_back_by_the_end(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    """The command that ended the job had said "killed", and its log "ending", for ever."""
    for name in ("SILENT", "_RETRY", "HURRIED"):
        monkeypatch.setattr(record, name, 0.01)
    answers, calls = threading.Event(), []

    async def act() -> None:
        made, told = pen(storage, lambda: True)
        append = made._writer.append

        def hang(lines: list[bytes], sync: bool) -> None:
            calls.append(lines)
            answers.wait(60)
            if len(calls) == 2 and not lands:
                raise StorageFailed("nobody answers")
            append(lines, sync)

        answers.set()
        monkeypatch.setattr(made._writer, "append", hang)
        await made.append([EVENT], sync=True, limit=None)
        answers.clear()
        writing = asyncio.create_task(made.append([decode(line(2))], sync=True, limit=None))
        await until_async(lambda: told)
        made.hurry()
        with pytest.raises(StorageFailed):
            await writing
        made.leave([decode(line(3))])
        answers.set()
        await made.close()

    asyncio.run(act())
    assert [json.loads(text)["n"] for text in Reader(storage).poll().lines] == [1, 2, 3]


@pytest.mark.parametrize("hangs", [True, False])
def test_a_user_who_ends_a_job_does_not_wait_as_long_as_the_job_may_wait_for_its_storage(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    for name in ("SILENT", "_RETRY", "HURRIED"):
        monkeypatch.setattr(record, name, 0.01)
    answers = threading.Event()

    def confirm() -> bool:
        if hangs:
            return answers.wait(60)
        raise StorageFailed("nobody answers")

    async def act() -> None:
        made, told = pen(storage, confirm)
        writing = asyncio.create_task(made.append([EVENT], sync=True, limit=None))
        await until_async(lambda: told)
        assert not writing.done()
        made.hurry()
        with pytest.raises(StorageFailed):
            await writing
        answers.set()

    asyncio.run(act())


def test_no_turn_waits_for_a_snapshot_that_a_storage_does_not_take(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SNAPSHOT_EVERY", "SNAPSHOT_SOONER"):
        monkeypatch.setattr(f"trainmaster.master.shell.{name}", 1)
    monkeypatch.setattr("trainmaster.master.shell.KEPT_WITHIN", 0.01)
    script, nothing = Script(job(worker=role())), cast(Any, None)
    begun: list[int] = []
    script.ask()

    async def keep(state: State) -> None:
        begun.append(state.n)
        await asyncio.Event().wait()

    async def act() -> None:
        made = Record(open_writer(storage, 1, script.state.n), lambda: True, lambda _: None)
        made.appended = script.state.n
        turning = Shell(script.drive, 1, made, nothing, storage, nothing, nothing, lambda: script.now, keep)
        for day in ("2030-01-01", "2030-01-02"):
            turning.tell(stimuli.SaveRequested(day))
            await turning.turn()
        assert len(script.state.saves) == 2
        assert len(begun) == 1, "none is begun while another is written"
        await made.close()

    asyncio.run(act())


def test_an_epoch_that_cannot_be_confirmed_is_a_storage_that_fails(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_RETRY", 0.0)
    failures = [StorageFailed("could not list a folder: nobody answers") for _ in range(3)]

    def confirm() -> bool:
        if failures:
            raise failures.pop()
        return True

    async def act() -> None:
        made, told = pen(storage, confirm)
        await made.append([EVENT], sync=True, limit=None)
        assert told == ["could not list a folder: nobody answers"] * 3 + [""]
        failures.append(StorageFailed("could not list a folder: for good"))
        with pytest.raises(StorageFailed, match="for good"):
            await made.append([decode(line(2))], sync=True, limit=0)
        await made.close()

    asyncio.run(act())
    assert len((storage.read("events/1-1.jsonl") or b"").splitlines()) == 2


def test_a_disk_without_room_for_the_end_is_a_trouble_in_which_events_are_written(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "LOOK", 0.01)
    is_full = True

    def allocate(file: int, begin: int, size: int) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(linux, "allocate", allocate)

    async def act() -> None:
        nonlocal is_full
        made, told = pen(storage, lambda: True)
        await made.append([EVENT], sync=True, limit=1000)
        await made.durable(1)
        assert "no space left on the disk" in told[-1]
        assert made.overdue(1000) == "" == made.overdue(None)
        assert made.overdue(0) == told[-1]
        looking = asyncio.create_task(made.lost())
        is_full = False
        await until_async(lambda: told[-1] == "", what="the trouble's end, without an event")
        assert made.overdue(0) == ""
        looking.cancel()
        await made.close()

    asyncio.run(act())


@pytest.mark.parametrize("sync", [True, False])
def test_what_a_later_master_may_not_have_read_is_acknowledged_to_nobody(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    monkeypatch.setattr(record, "NOTES", 0.0)

    async def act() -> None:
        looked: list[bool] = []

        def confirm() -> bool:
            looked.append(epochs.confirm(storage, 1))
            if not sync and len(looked) == 1:
                epochs.take(storage), epochs.take(storage)  # the other master comes between the write and the sync
            return looked[-1]

        if sync:
            epochs.take(storage), epochs.take(storage)
        made, _ = pen(storage, confirm)
        if sync:
            with pytest.raises(Superseded):
                await made.append([EVENT], sync=True, limit=None)
        else:
            await made.append([EVENT], sync=False, limit=None)
            await until_async(lambda: False in looked)
        waiting = asyncio.create_task(made.durable(1))
        await until_async(lambda: made.superseded and made._waiters)
        assert not waiting.done()
        waiting.cancel()
        await made.close()

    asyncio.run(act())


def test_a_master_with_nothing_to_write_hears_that_another_follows(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "LOOK", 0.0)
    answers = threading.Event()

    def confirm() -> bool:
        if not answers.is_set():
            raise StorageFailed("could not list a folder: nobody answers")
        return epochs.confirm(storage, 1)

    async def act() -> None:
        made, told = pen(storage, confirm)
        lost = asyncio.create_task(made.lost())
        epochs.take(storage)
        answers.set()
        await until_async(lambda: storage.entries("epochs"))
        assert not lost.done()
        epochs.take(storage)
        await until_async(lost.done)
        assert made.superseded
        assert told == []
        await made.close()

    asyncio.run(act())


def test_who_names_a_higher_epoch_makes_a_master_look_and_the_storage_alone_ends_it(storage: LocalStorage) -> None:
    looks = []

    def confirm() -> bool:
        looks.append(epochs.confirm(storage, 1))
        return looks[-1]

    async def act() -> None:
        made, _ = pen(storage, confirm)
        lost = asyncio.create_task(made.lost())
        epochs.take(storage)
        made.look()
        await until_async(lambda: looks == [True])
        assert not made.superseded
        epochs.take(storage)
        made.look()
        await until_async(lost.done)
        assert looks == [True, False]
        assert made.superseded
        await made.close()

    asyncio.run(act())


def test_notes_that_could_not_be_synced_in_time_are_synced_once_the_storage_is_back(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "NOTES", 0.0)
    monkeypatch.setattr(record, "_RETRY", 0.0)
    away = threading.Event()

    def confirm() -> bool:
        if away.is_set():
            raise StorageFailed("nobody answers")
        return True

    async def act() -> None:
        made, told = pen(storage, confirm)
        await made.append([EVENT], sync=False, limit=0)
        away.set()
        await until_async(lambda: len(told) > 2)  # long after the limit
        away.clear()
        await made.durable(1)
        await until_async(lambda: told[-1] == "")
        await made.close()

    asyncio.run(act())


def test_what_a_superseded_master_has_not_written_is_nobodys(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed() -> None:
        raise StorageFailed("another master has closed the file")

    async def act(superseded: bool) -> None:
        made, _ = pen(storage, lambda: True)
        monkeypatch.setattr(made._writer, "flush", closed)
        made.superseded = superseded
        await made.close()

    asyncio.run(act(True))
    with pytest.raises(StorageFailed):
        asyncio.run(act(False))


# -- room on a full disk --


def shell(leaving: bool, work: Callable[[Any], Any]) -> Shell:
    state = State(id="t-aaaaaa", leaving=leaving)
    nothing: Any = None
    return Shell(Drive(state), 1, nothing, nothing, nothing, nothing, work, lambda: 0.0, nothing)


def test_room_is_made_once_and_again_where_that_failed() -> None:
    done: list[str] = []
    failures: list[Exception] = [OSError("a directory is not empty")]

    async def work(step: Any) -> None:
        done.append(step.name)
        if failures:
            raise failures.pop()

    async def act() -> None:
        early = shell(False, work)
        early.trouble("no space left on the disk")
        assert not early._making_room
        made = shell(True, work)
        for n in (1, 2):
            made.trouble("no space left on the disk")
            await asyncio.gather(*made._making_room.values())
            assert done == ["remove-staging"] * n
        for _ in range(5):
            made.trouble("no space left on the disk")
            await asyncio.gather(*made._making_room.values())
        assert done == ["remove-staging"] * 2

    asyncio.run(act())


# -- snapshots --


@pytest.mark.parametrize("kept", [{"nosuch": 1}, {"tasks": {"worker:0": {"nosuch": 1}}}, {"job": {"roles": 1}}, [], 1])
def test_a_snapshot_of_another_form_is_passed_over(storage: LocalStorage, kept: object) -> None:
    epoch, writer = start_master(storage)
    lines = [line(n, epoch).replace(b"progressed", b"unheard-of") for n in range(2, 5)]
    writer.append(lines, sync=True)
    write_snapshot(storage, 3, epoch, __version__, json.dumps(kept).encode())
    state, reader = replayed(storage)
    assert (state.n, reader.last) == (4, 4)
    whole = fold(State(), map(decode, [first_line(1, epoch, {}), *lines]))
    assert snapshot.dump(state) == snapshot.dump(whole)


def test_a_snapshot_never_knows_more_than_the_log_surely_has(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the log, once it lost its last notes with the machine's power, would read as damaged."""
    for name in ("SNAPSHOT_EVERY", "SNAPSHOT_SOONER"):
        monkeypatch.setattr(f"trainmaster.master.shell.{name}", 1)
    script, nothing = Script(job(worker=role())), cast(Any, None)
    kept: list[int] = []
    script.ask()

    async def keep(state: State) -> None:
        kept.append(state.n)

    async def act() -> None:
        made = Record(open_writer(storage, 1, script.state.n), lambda: True, lambda _: None)
        made.appended = script.state.n
        turning = Shell(script.drive, 1, made, nothing, storage, nothing, nothing, lambda: script.now, keep)
        turning.tell(stimuli.Waiting("cores", "2", "1"))
        await turning.turn()
        assert (made.synced, kept) == (0, [])
        turning.tell(stimuli.SaveRequested("2030-01-01"))
        await turning.turn()
        assert kept == [made.synced]
        await made.close()

    asyncio.run(act())


def put(storage: LocalStorage, epoch: int, *lines: bytes) -> None:
    storage.replace(f"events/{epoch}-{decode(lines[0]).n}.jsonl", b"".join(lines))


@pytest.mark.parametrize("snapshot_at", [None, 103])
def test_what_a_master_read_that_began_beside_us_and_what_it_did_not_read(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, snapshot_at: int | None
) -> None:
    """3 is cut off and writes on; 4 and 5 begin at once; 4 has read up to 100, and says so when 5 has read all that 3 wrote."""
    early = [first_line(1, 3, {}), *(encode(Event(n, 0.0, 3, "unheard-of", {})) for n in range(2, 101))]
    early += [encode(Event(n, 0.0, 3, "kill-requested", {"by": "who it was denied"})) for n in range(101, 106)]
    put(storage, 3, *early)
    if snapshot_at is not None:
        read = fold(State(), map(decode, early[:snapshot_at]))
        write_snapshot(storage, snapshot_at, 3, __version__, json.dumps(snapshot.dump(read)).encode())
    late = [first_line(101, 4, {3: 100}), line(102, 4).replace(b"progressed", b"unheard-of")]

    def then(act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(*given: Any) -> Any:
            done = act(*given)
            put(storage, 4, *late)
            return done

        return acting

    if snapshot_at is None:
        monkeypatch.setattr(replay, "fold", then(replay.fold))
    else:
        monkeypatch.setattr(snapshot, "load", then(snapshot.load))
    state, reader = replayed(storage)
    assert (reader.read, state.n) == ({3: 100, 4: 102}, 102)
    counted = fold(State(), map(decode, early[:100] + late))
    assert snapshot.dump(state) == snapshot.dump(counted)
