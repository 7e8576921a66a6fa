"""The ledger between processes: nothing is granted twice, the dead hold nothing, another boot's ledger is not read."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from local_machine import GIB, finished, forked, holding, of, request
from waiting import until

from trainmaster.core.errors import EngineFailed
from trainmaster.engines.local.ledger import FILE, Ledger
from trainmaster.engines.local.sweep import sweep
from trainmaster.host import places, processes
from trainmaster.host.machine import Capacity
from trainmaster.log.storage import Damaged

ONE = of(cores=1.0)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def enter(ledger: Ledger, job: str, epoch: int = 1) -> None:
    ledger.enter(job, epoch, processes.this_process())


def test_what_other_jobs_hold_is_counted(ledger: Ledger) -> None:
    for job in ("a", "b"):
        enter(ledger, job)
        ledger.ask(job, 1, [request(f"w:{index}", cores=0.25) for index in range(2)])
    ledger.serve(ONE(True))
    ledger.free("a", "w:1", 1)
    assert (ledger.held_by_others("a"), ledger.held_by_others("b"), ledger.held_by_others("c")) == (2, 1, 3)


def test_the_dead_hold_nothing(ledger: Ledger) -> None:
    enter(ledger, "b")
    with forked(holding("a", request("w:0"), capacity=ONE)) as pid:
        ledger.ask("b", 1, [request("w:0")])
        assert ledger.serve(ONE(True)) == set()
        os.kill(pid, signal.SIGKILL)
        until(lambda: ledger.serve(ONE(True)) == {"b"})
    assert [hold.job for hold in ledger.holds()] == ["b"]


def test_asks_are_absolute_and_keep_their_place(ledger: Ledger) -> None:
    enter(ledger, "a")
    enter(ledger, "b")
    ledger.ask("a", 1, [request("w:0", 2.0), request("w:1")])
    ledger.ask("b", 1, [request("w:0")])
    ledger.ask("a", 1, [request("w:1"), request("w:2")])
    assert [(ask.job, ask.request.task) for ask in ledger.asks()] == [("a", "w:1"), ("b", "w:0"), ("a", "w:2")]
    assert ledger.serve(ONE(True)) == {"a"}
    ledger.ask("a", 1, [request("w:1"), request("w:2")])
    assert [ask.request.task for ask in ledger.asks() if ask.job == "a"] == ["w:2"], "what is held is not asked again"
    ledger.free("a", "w:1", 1)
    assert ledger.serve(ONE(True)) == {"a"}, "the job that was first in line stays it"


def test_a_master_of_a_lower_epoch_is_refused(ledger: Ledger) -> None:
    enter(ledger, "a", epoch=3)
    with pytest.raises(EngineFailed, match="epoch 3"):
        enter(ledger, "a", epoch=2)
    with pytest.raises(EngineFailed, match="must stop"):
        ledger.ask("a", 2, [])


def test_a_ledger_of_another_version_is_refused_while_somebody_lives_in_it(ledger: Ledger) -> None:
    enter(ledger, "a")
    ledger.ask("a", 1, [request("w:0")])
    db = sqlite3.connect(places.runtime_dir() / FILE)
    db.execute("PRAGMA user_version = 99")
    with pytest.raises(EngineFailed, match="another version"):
        Ledger()
    db.execute("UPDATE jobs SET start = 1")
    db.commit()
    db.close()
    assert Ledger().asks() == [], "nobody lives in it: it is begun anew"


def test_what_gives_way_is_kept_in_the_ledger_and_its_master_woken(ledger: Ledger) -> None:
    enter(ledger, "low")
    ledger.ask("low", 1, [request("w:0", minimum=1), request("w:1", minimum=1)])
    two = Capacity(2.0, 8 * GIB)
    ledger.serve(two)
    enter(ledger, "high")
    ledger.ask("high", 1, [request("w:0", job_priority=1)])
    assert ledger.serve(two) == {"low"}
    assert [hold.yields_to for hold in ledger.holds()] == ["", "high"]
    assert ledger.serve(two) == set(), "it is told once"
    ledger.free("low", "w:1", 1)
    assert ledger.serve(two) == {"high"}


def test_another_boots_ledger_is_not_read_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "11111111-1111-4111-8111-111111111111"
    with monkeypatch.context() as patch:
        patch.setattr(places, "boot_id", lambda: old)
        holding("a", request("w:0"), capacity=ONE)()
        before = places.runtime_dir()
    assert (before / FILE).exists()
    assert Ledger().holds() == []
    sweep()
    assert not before.exists()


def _rounds(job: str, busy: Path, rounds: int) -> Callable[[], None]:
    """Take the machine's one core so many times; while it is held, nobody else may have made `busy`."""

    def run() -> None:
        ledger = Ledger()
        ledger.enter(job, 1, processes.this_process())
        for serial in range(rounds):
            ledger.ask(job, 1, [request("w:0", serial=serial)])
            until(lambda: ledger.serve(ONE(True)) | {entry.hold.job for entry in ledger.entries(job)} >= {job})
            os.close(os.open(busy, os.O_CREAT | os.O_EXCL))
            busy.unlink()
            ledger.free(job, "w:0", serial)
        os._exit(0)

    return run


def test_two_processes_race_and_one_core_is_never_held_twice(tmp_path: Path) -> None:
    busy = tmp_path / "busy"
    with forked(_rounds("a", busy, 50), wait=False) as one, forked(_rounds("b", busy, 50), wait=False) as other:
        assert [finished(one), finished(other)] == [0, 0]
    assert Ledger().holds() == []


def test_who_opens_it_waits_for_whoever_came_first(ledger: Ledger) -> None:
    other = sqlite3.connect(places.runtime_dir() / FILE, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    turn_ends = threading.Timer(0.3, other.execute, ["COMMIT"])
    turn_ends.start()
    try:
        Ledger().close()
        assert turn_ends.finished.is_set()
    finally:
        turn_ends.join()
        other.close()


def test_a_turn_that_could_not_be_committed_leaves_nothing_and_the_next_one_is_made(ledger: Ledger) -> None:
    """It stayed open, and the next one was taken for a damage of the ledger, which was made anew."""
    enter(ledger, "a")
    reader = sqlite3.connect(places.runtime_dir() / FILE, isolation_level=None)
    try:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM jobs").fetchall()  # no commit comes past a reader
        ledger.wait_at_most(0.0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            enter(ledger, "b")
    finally:
        reader.close()
    enter(ledger, "c")
    assert set(Ledger().masters()) == {"a", "c"}


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "overwritten": lambda content: b"x" * len(content),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_open", [True, False])
def test_a_damaged_ledger_is_named_while_an_agent_lives_and_then_made_anew(damage: str, is_open: bool) -> None:
    path = places.runtime_dir() / FILE
    known = Ledger()
    with forked(holding("a", request("w:0"), capacity=ONE)) as pid:
        agent = processes.mark("a", processes.AGENT, "w:0", 1, pid)
        assert agent is not None
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
        ledger = known if is_open else Ledger()
        for _ in range(2):
            with pytest.raises(Damaged, match=f"{FILE} is damaged") as told:
                ledger.asks()
            assert told.value.place == str(path)
        processes.unmark("a", agent)
        with pytest.raises(Damaged):
            ledger.asks()
        assert ledger.holds() == []
        enter(ledger, "b")
        assert set(Ledger().masters()) == {"b"}


def test_two_that_make_it_anew_at_once_make_one() -> None:
    path = places.runtime_dir() / FILE
    Ledger().close()
    path.write_bytes(b"")
    one, other = Ledger(), Ledger()
    enter(one, "a")
    enter(other, "b")
    assert set(one.masters()) == set(other.masters()) == {"a", "b"}


def test_what_was_granted_to_a_master_that_died_before_it_started_it_is_granted_again(ledger: Ledger) -> None:
    with forked(holding("a", request("w:0"), capacity=ONE)):
        pass
    enter(ledger, "a", 2)
    ledger.ask("a", 2, [request("w:0")])
    assert ledger.serve(ONE(True)) == {"a"}
    assert [hold.job for hold in ledger.holds()] == ["a"]
