"""Metrics in a job's storage: bounded, there until the last second, and never in anybody's way."""

from __future__ import annotations

import json
import os
import signal
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

import trainmaster
from trainmaster.client.jobs.past import Past
from trainmaster.core.errors import StorageFailed
from trainmaster.core.metrics import JOB, Series, Store
from trainmaster.host import processes
from trainmaster.log.metrics import keeper
from trainmaster.log.metrics.files import FOLDER, Rows, read_metrics, sample_line
from trainmaster.log.metrics.keeper import Keeper
from trainmaster.log.storage import Appender, LocalStorage, Storage, storage_for


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Writing:
    """A master's series and their keeper."""

    def __init__(self, storage: Storage, epoch: int = 1) -> None:
        self.clock = Clock()
        self.keeper = Keeper(storage, epoch, self.clock)
        self.store = self.keeper.read()
        self.n = int(self.store.last("worker:0", "step") or 0)

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            self.n += 1
            at, values = 1e9 + 3 * self.n, {"cpu": 0.5, "step": float(self.n), "metric.loss": 1 / self.n}
            self.store.add(at, "worker:0", values)
            self.keeper.take([sample_line(at, "worker:0", values)], self.rows)
            self.clock.now += 1.0

    def rows(self) -> Rows:
        return deque(self.store.rows())

    def wait(self) -> None:
        until(lambda: self.keeper._queued == self.keeper._handled)

    def close(self) -> None:
        self.keeper.close(self.rows)


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Writing]:
    writing = Writing(LocalStorage(tmp_path))
    yield writing
    writing.close()


def in_order(store: Store) -> list[Series]:
    return sorted(store.series(), key=lambda series: (series.task, series.name))


def sizes(storage: Storage) -> dict[str, int]:
    return {entry.name: entry.size for entry in storage.entries(FOLDER)}


@pytest.mark.parametrize("url", ["local", "memory"])
def test_a_successor_goes_on_with_what_a_master_has_kept(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "TAIL", 2000)
    storage = storage_for(tmp_path if url == "local" else f"memory://{uuid.uuid4()}")
    for epoch in (1, 2, 3):
        master = Writing(storage, epoch)
        master.take(120)
        master.store.interrupt("worker:0")
        master.keeper.take([sample_line(0.0, "worker:0", {})], master.rows)
        master.close()
        assert in_order(read_metrics(storage)) == in_order(master.store)
        assert sum(sizes(storage).values()) < 20_000
    assert read_metrics(storage).last("worker:0", "step") == 360.0
    assert len([name for name in sizes(storage) if name.endswith(".series")]) == 1


def test_what_was_written_a_moment_ago_is_there_though_the_master_never_closes(
    writing: Writing, tmp_path: Path
) -> None:
    writing.take(5)
    writing.wait()
    assert in_order(read_metrics(LocalStorage(tmp_path))) == in_order(writing.store)


def test_the_end_of_a_file_may_be_missing(tmp_path: Path) -> None:
    writing = Writing(LocalStorage(tmp_path))
    writing.take(4)
    writing.close()
    path = tmp_path / FOLDER / "1-0.samples"
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        whole_lines = content[: size + 1].count(b"\n") - 1
        last = read_metrics(LocalStorage(tmp_path)).last("worker:0", "step")
        assert last in ({None, 1.0} if whole_lines < 1 else {float(whole_lines), whole_lines + 1.0})


DAMAGED = (
    b"\xff\xfe\x00", b"[]", b"5", b'{"at":1}', b'{"at":NaN,"task":"worker:0","values":{"cpu":1}}', b"[" * 5000,
    b'{"at":1e9,"task":"worker:0","values":{"cpu":NaN,"memory":"x"}}', b'{"points":3,"content":"!"}',
    b'{"at":1e9,"task":"worker:0","values":[1]}', b'{"later":{"versions":"have more"}}',
)  # fmt: skip


def test_lines_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    writing = Writing(LocalStorage(tmp_path))
    writing.take(3)
    writing.close()
    path = tmp_path / FOLDER / "1-0.samples"
    first, *others = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, *DAMAGED, *others, b""]))
    assert in_order(read_metrics(LocalStorage(tmp_path))) == in_order(writing.store)


def test_files_of_a_newer_version_and_other_files_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writing = Writing(LocalStorage(tmp_path))
    writing.take(3)
    writing.close()
    newer = tmp_path / FOLDER / "2-0.samples"
    newer.write_bytes(b'{"version":"2.0"}\n' + sample_line(2e9, "worker:0", {"cpu": 9.0}))
    (tmp_path / FOLDER / "notes.txt").write_text("mine")
    assert in_order(read_metrics(LocalStorage(tmp_path))) == in_order(writing.store)
    assert "version 2.0" in caplog.text
    newer.write_bytes(b'{"version":"1.9","more":1}\n' + sample_line(2e9, "worker:0", {"cpu": 9.0}))
    assert read_metrics(LocalStorage(tmp_path)).last("worker:0", "cpu") == 9.0


def test_a_storage_that_fails_for_a_while_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writing = Writing(LocalStorage(tmp_path))
    writing.take(2)
    writing.wait()
    (tmp_path / FOLDER).rename(tmp_path / "away")
    (tmp_path / FOLDER).write_text("no folder")
    writing.keeper._close_appender()
    until(lambda: writing.take() or "could not be written" in caplog.text)
    writing.take(3)
    (tmp_path / FOLDER).unlink()
    (tmp_path / "away").rename(tmp_path / FOLDER)
    writing.take(20)
    writing.close()
    assert in_order(read_metrics(LocalStorage(tmp_path))) == in_order(writing.store)


class Hung(LocalStorage):
    """A storage that does not answer until it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.goes_on = threading.Event()

    def appender(self, path: str) -> Appender:
        self.goes_on.wait()
        return super().appender(path)


def test_a_storage_that_hangs_is_waited_for_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "QUEUE", 1000)
    monkeypatch.setattr(keeper, "CLOSING", 0.01)
    storage = Hung(tmp_path)
    writing = Writing(storage)
    try:
        writing.take(500)
        assert writing.keeper._queued - writing.keeper._handled < 2000
        writing.close()
    finally:
        storage.goes_on.set()
    writing.wait()


class Small(LocalStorage):
    """As ConfigMaps are."""

    droppable = 2000


def test_a_small_storage_gets_little_and_the_whole_job_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "TINY", 3000)
    writing = Writing(Small(tmp_path))
    for task in (JOB, *(f"worker:{n}" for n in range(100))):
        writing.store.add(1e9, task, {"cpu": 1.0})
    writing.take(300)
    writing.close()
    assert sum(sizes(writing.keeper._storage).values()) < 3100
    assert read_metrics(LocalStorage(tmp_path)).series()[0].task == JOB


def test_a_storage_that_is_away_is_said_to_a_reader(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "1-0.samples").mkdir()
    with pytest.raises(StorageFailed):
        read_metrics(LocalStorage(tmp_path))


PROGRAM = """
import pathlib, sys, time
from trainmaster import runtime
for step in range(10_000):
    runtime.progress(step / 10_000, step=step, loss=1 / (step + 1), odd=float("nan"))
    if pathlib.Path(sys.argv[1]).exists():
        break
    time.sleep(0.02)
"""


def test_a_real_job_has_its_metrics_afterwards_though_its_master_was_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    role = {
        "command": f"python train.py {tmp_path}/over",
        "replicas": 2,
        "resources": {"cores": 0.01, "memory": "64MiB"},
    }
    run = trainmaster.submit({"name": "measured", "roles": {"worker": role}}, directory=tmp_path)
    past = Past(run.id)

    def series(name: str) -> Series:
        return next(iter(past.metrics(["worker:1"], [name])), Series("", "", [], [], []))

    try:
        until(lambda: len(series("metric.loss").times) > 2 and series("cpu").times)
        (master,) = {process.process for process in processes.living(run.id, processes.MASTER)}
        processes.send(master, signal.SIGKILL)
        until(lambda: not processes.living(run.id, processes.MASTER) or run.status()["epoch"] == 2)
        before = series("metric.loss")
        assert len(before.times) > 2
        until(lambda: len(series("metric.loss").times) > len(before.times) + 2)
        (tmp_path / "over").touch()
        assert run.wait()["state"] == "succeeded"
    finally:
        run.kill()
    after = series("metric.loss")
    assert after.times[: len(before.times)] == before.times
    steps = [step for step in series("step").highest if step is not None]
    assert steps == sorted(steps)
    assert series("memory").values
    assert [whole.name for whole in past.metrics([""]) if whole.highest[-1]] >= ["cpu", "memory", "progress"]
    odd, *_ = past.metrics(names=["metric.o*"])
    assert (odd.is_nan, {*odd.values}) == (True, {None}), "nan is kept as such"


def test_a_program_that_ends_at_once_leaves_its_last_values(tmp_path: Path) -> None:
    (tmp_path / "brief.py").write_text(
        "from trainmaster import runtime\nruntime.metrics(loss=1.5)\nruntime.metrics(loss=0.5, acc=0.75)"
    )
    run = trainmaster.submit({"name": "brief", "roles": {"worker": {"command": "python brief.py"}}}, directory=tmp_path)
    assert run.wait()["state"] == "succeeded"
    last = {series.name: series.values[-1] for series in until(lambda: Past(run.id).metrics(["worker:0"]))}
    assert (last["metric.loss"], last["metric.acc"]) == (0.5, 0.75)
    assert (os.stat(Path(Past(run.id).storage.url, FOLDER)).st_mode & 0o777) == 0o700
    assert json.loads(Path(Past(run.id).storage.url, FOLDER, "1-0.samples").read_bytes().splitlines()[0]) == {
        "version": "1.0"
    }
