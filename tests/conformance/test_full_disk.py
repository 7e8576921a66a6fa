"""A disk that fills up: while staging, while the program writes, while its output and the events are kept.

Each has a small file system of its own (a tmpfs, which needs root), in place of the state directory or a part of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.faults import full_disk, living
from conformance.engines import Engine, python, workers
from parts import mounted
from waiting import until

from trainmaster.host import processes
from trainmaster.host.processes import MASTER

pytestmark = pytest.mark.needs("local-master")

MIB = 1 << 20


@pytest.fixture
def small_state(home) -> Iterator[Path]:
    """The state directory on a file system of 24 MiB."""
    home.state.mkdir(parents=True, exist_ok=True)
    with mounted(home.state, "size=24m"):
        yield home.state
        assert not list(home.state.glob("live/*"))


def test_while_staging(small_state: Path, engine: Engine) -> None:
    """The copy of the input does not fit; the reason names the disk, and nothing of the copy stays."""
    engine.write("data/big.bin", b"x" * (30 * MIB))
    job = engine.submit(workers("echo ran", restart="never"), inputs={"train": {"url": "data", "as": "download"}})
    reason = job.failed("disk-full")
    assert "big.bin" in reason["words"] or "space" in reason["words"] or "MiB" in reason["words"]
    assert job.lines() == []
    assert not list(small_state.rglob("big.bin*"))


def test_while_the_program_writes(small_state: Path, engine: Engine) -> None:
    program = "head -c 40000000 /dev/zero > model || exit 1"
    job = engine.submit(workers(program, restart="never", workdir="copy"))
    assert "full disk" in job.failed("disk-full")["words"]


def test_while_its_output_is_kept(small_state: Path, engine: Engine) -> None:
    """A program is not held up for its log; the last lines name what could not be kept."""
    program = python(f"""
        import os
        for i in range(40):
            os.write(1, b"x" * (1 << 20))
        open({str(engine.folder / "done")!r}, "w").close()
    """)
    job = engine.submit(workers(program))
    status = job.end()
    assert (engine.folder / "done").exists()
    assert status["state"] == "succeeded", job.story(status)
    assert (job.storage / "logs/worker-0/1.log").stat().st_size < 30 * MIB
    kept = (job.storage / "logs/worker-0/1.log").read_bytes().count(b"x")
    (loss,) = status["losses"]
    assert (loss["kind"], loss["task"], loss["bytes"] + kept) == ("log", "worker:0", 40 * MIB)
    for command in ("wait", "attach"):
        shown = engine.tm(command, job.id)
        assert "lost: " in shown.stdout + shown.stderr, command
        assert "of the output of worker:0 could not be written: No space left" in shown.stdout + shown.stderr, command


def test_while_events_are_appended(small_state: Path, engine: Engine) -> None:
    """Decisions wait, programs go on, the waiting names the storage, and all goes on when there is room again."""
    go, room = engine.folder / "go", engine.folder / "room"
    program = f"echo ready; while ! test -e '{go}'; do sleep 0.05; done; test -e '{room}'"
    job = engine.submit(workers(program, restart={"limit": 1000}))  # each restart needs a little of the disk
    job.until_line("ready")
    with full_disk(small_state):
        go.touch()
        told = job.until_status("a waiting", lambda status: "space" in status["waiting"])["waiting"]
        assert "events" in told or str(small_state) in told
        assert job.status()["state"] == "running"
        room.touch()
    job.succeeded()
    assert job.task("worker:0")["attempt"] >= 2


def test_the_end_is_recorded_on_a_disk_that_stays_full(small_state: Path, engine: Engine) -> None:
    """The master holds some room for the events of the job's end."""
    go = engine.folder / "go"
    many = 16  # so many ends that their events are more than what is free in the log's last page
    job = engine.submit(workers(f"echo ready; while ! test -e '{go}'; do sleep 0.05; done", many))
    for index in range(many):
        job.until_line("ready", f"worker:{index}")
    with full_disk(small_state):
        go.touch()
        job.succeeded()


def test_a_disk_that_stays_full_ends_the_job(small_state: Path, engine: Engine) -> None:
    job = engine.submit(workers("echo ready; sleep 0.5; exit 1", restart={"limit": 1000}), timeouts={"storage": "2s"})
    job.until_line("ready")
    with full_disk(small_state):
        assert "no space left on the disk" in job.failed("storage-lost")["words"]


@pytest.mark.full
def test_events_that_can_never_be_appended_end_the_job(small_state: Path, engine: Engine) -> None:
    """After timeouts.storage nothing of it runs any more; what can be kept nowhere, the next command says."""
    from conformance.engines import processes_of

    job = engine.submit(workers("echo ready; sleep 0.5; exit 1", restart={"limit": 1000}), timeouts={"storage": "2s"})
    job.until_line("ready")
    (master,) = living(job.id, MASTER)
    assert processes.send(master.process, signal.SIGSTOP)
    for path in job.storage.glob("events/*"):
        os.truncate(path, path.stat().st_size)  # the master loses the room that it holds
    with full_disk(small_state):
        assert processes.send(master.process, signal.SIGCONT)
        until(lambda: not processes_of(job.id), limit=150, what="its end")
    assert engine.tm("list").returncode == 0
    told = engine.tm("wait", job.id)
    assert told.returncode == 3, told.stdout
    assert f"no process of {job.id} is left" in told.stderr


def test_an_output_that_does_not_fit(engine: Engine, tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    with mounted(place, "size=4m"):
        program = "mkdir m; head -c 8000000 /dev/zero > m/weights"
        job = engine.submit(workers(program, restart="never"), outputs={"m": {"url": str(place / "out")}})
        status = job.end()
        assert status["reason"]["reason"] in ("upload-failed", "disk-full"), job.story(status)
        assert "full" in status["reason"]["words"]
        assert not (place / "out/worker-0").exists()


def test_a_checkpoint_that_does_not_fit(engine: Engine, tmp_path: Path) -> None:
    """The set before is used, and the job says which was not stored, and why."""
    place, go = tmp_path / "small", engine.folder / "go"
    place.mkdir()
    program = python(f"""
        import os, pathlib, signal, time
        path = pathlib.Path("ckpt")
        if path.exists():
            print("restored", (path / "step").read_text(), sorted(file.name for file in path.iterdir()), flush=True)
            raise SystemExit
        path.mkdir()
        (path / "step").write_text("1")
        print("step 1", flush=True)
        while not os.path.exists({str(engine.folder / "more")!r}):
            time.sleep(0.02)
        (path / "weights").write_bytes(os.urandom(8 << 20))
        (path / "step").write_text("2")
        print("step 2", flush=True)
        while not os.path.exists({str(go)!r}):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    with mounted(place, "size=4m"):
        job = engine.submit(workers(program), checkpoint={"path": "ckpt", "every": "200ms", "url": str(place / "sets")})
        job.until_status("a set", lambda status: status["checkpoint"] is not None)
        (engine.folder / "more").touch()
        words = job.until_status("words", lambda status: "trouble" in status["tasks"][0])["tasks"][0]["trouble"]
        assert (words["what"], words["detail"][:16]) == ("checkpoint", "the disk is full"), words
        go.touch()
        job.succeeded()
        assert job.lines(attempt=2) == ["restored 1 ['step']"]


def test_a_state_directory_that_is_full_at_submit(small_state: Path, engine: Engine) -> None:
    with full_disk(small_state):
        engine.write("job.yaml", "name: t\nroles: {worker: {command: 'true'}}\n")
        told = engine.tm("run", "job.yaml")
        assert told.returncode == 3, told.stderr
        assert "space" in told.stderr
        assert "Traceback" not in told.stderr
    assert os.listdir(small_state / "jobs") == [] if (small_state / "jobs").exists() else True


def test_a_disk_that_is_full_before_the_first_event_is_named(engine: Engine) -> None:
    """A master answers nobody until it has its log. The command that watches said that no master answers, and never why."""
    small = engine.folder / "small"
    small.mkdir()
    with mounted(small, "size=1m"):
        (small / "jobs").mkdir()
        with full_disk(small):
            job = engine.submit(workers("true"), storage=str(small / "jobs"))
            until(lambda: "no space left" in engine.tm("wait", job.id, "--timeout", "5s").stderr)
            assert "its master waits for its storage" in engine.tm("status", job.id).stderr
        job.succeeded()
