"""Jobs whose storage is elsewhere: a user sees the same, while the job runs and after it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conformance.engines import TM, Engine, python, workers
from elsewhere import HDFS, elsewhere, hdfs  # noqa: F401  fixtures
from s3 import serving
from waiting import until

from trainmaster.client.jobs.places import job_ids
from trainmaster.client.watch.logs import pieces
from trainmaster.host import processes
from trainmaster.log.storage import Storage, storage_for

pytestmark = pytest.mark.needs("only-engine")

HOLD = 'echo "here $TRAINMASTER_INDEX"; while [ ! -e go ]; do sleep 0.02; done; echo "over $TRAINMASTER_INDEX"'


@pytest.fixture(params=["path", "file", "s3", HDFS])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("s3", "hdfs"):
        return f"{request.getfixturevalue(request.param)}/of jobs/"
    return f"file://{tmp_path}/store" if request.param == "file" else f"{tmp_path}/store/"


@contextmanager
def begun(engine: Engine, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [TM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=engine.folder
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            (engine.folder / "go").touch()


def kept(storage: str, job: str) -> Storage:
    return storage_for(f"{storage.rstrip('/')}/{job}")


def test_a_user_sees_a_job_during_its_life_and_after_it(engine: Engine, storage: str) -> None:
    with begun(engine, "run", "-n", "2", "--storage", storage, "--", "sh", "-c", HOLD) as running:
        assert {running.stdout.readline() for _ in range(2)} == {"worker:0 here 0\n", "worker:1 here 1\n"}
        (job,) = job_ids()
        assert sorted(engine.tm("logs", job).stdout.splitlines()) == ["worker:0 here 0", "worker:1 here 1"]
        assert re.search(rf"^{job} +running", engine.tm("list").stdout, re.MULTILINE)
        assert "worker:1  running" in engine.tm("status", job).stdout
        assert "started" in {
            json.loads(line)["type"] for line in engine.tm("events", job, "--json").stdout.splitlines()
        }
        with begun(engine, "logs", "-f", job, "worker:1") as following:
            assert following.stdout.readline() == "here 1\n"
            (engine.folder / "go").touch()
            assert following.communicate(timeout=60)[0] == "over 1\n"
        rest, errors = running.communicate(timeout=60)
    assert (running.returncode, sorted(rest.splitlines())) == (0, ["worker:0 over 0", "worker:1 over 1"]), errors
    assert engine.tm("logs", job, "worker:0").stdout == "here 0\nover 0\n"
    assert engine.tm("logs", "-f", job, "worker:0").stdout == "here 0\nover 0\n"
    assert engine.tm("logs", job, "-n", "1", "worker:1").stdout == "over 1\n"
    assert re.search(rf"^{job} +succeeded", engine.tm("list").stdout, re.MULTILINE)
    assert "succeeded" in engine.tm("status", job).stdout
    assert "ended" in {json.loads(line)["type"] for line in engine.tm("events", job, "--json").stdout.splitlines()}
    assert engine.tm("attach", "--all-output", job).returncode == 0
    assert kept(storage, job).read("logs/worker-0/1.log") == b"here 0\nover 0\n"
    assert kept(storage, job).exists("logs/master/1.log")
    assert engine.tm("logs", job, "master").returncode == 0
    assert not list((Path(os.environ["TRAINMASTER_STATE_DIR"]) / "jobs" / job).glob("logs/worker-*/1.log*"))


def test_a_short_job_has_said_all_when_it_has_ended(engine: Engine, storage: str) -> None:
    done = engine.tm("run", "-n", "2", "--storage", storage, "--", "sh", "-c", "echo $TRAINMASTER_INDEX")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["worker:0 0", "worker:1 1"]), done.stderr


def test_watching_goes_on_over_the_death_of_a_master(engine: Engine, storage: str) -> None:
    with begun(engine, "run", "-n", "2", "--storage", storage, "--", "sh", "-c", HOLD) as watching:
        first = {watching.stdout.readline() for _ in range(2)}
        (job,) = job_ids()
        master = json.loads(kept(storage, job).read("master") or b"")["data"]["pid"]
        os.kill(master, signal.SIGKILL)
        until(lambda: kept(storage, job).exists("epochs/2"))
        (engine.folder / "go").touch()
        rest, errors = watching.communicate(timeout=60)
    assert watching.returncode == 0, errors
    assert first == {"worker:0 here 0\n", "worker:1 here 1\n"}
    assert sorted(rest.splitlines()) == ["worker:0 over 0", "worker:1 over 1"]


@pytest.mark.parametrize("every", ["50ms", "1h"])
def test_what_a_lost_agent_has_collected_is_still_there(engine: Engine, elsewhere: str, every: str) -> None:  # noqa: F811
    tell = "if [ $TRAINMASTER_ATTEMPT = 1 ]; then echo first; sleep 1000; fi; echo second"
    job = engine.submit(workers(tell), storage=elsewhere, logs={"every": every})
    job.until_line("first")
    if every == "50ms":
        until(lambda: kept(elsewhere, job.id).entries("logs/worker-0/1.log.d"), what=job.status)
    (agent,) = processes.living(job.id, processes.AGENT)
    os.kill(agent.process.pid, signal.SIGKILL)
    job.succeeded()
    assert job.lines("worker:0", attempt=1) == ["first"]
    assert job.lines("worker:0") == ["second"]
    if every == "50ms":  # nor is anything of this machine needed for it
        shutil.rmtree(job.storage / "logs" / "worker-0")
        assert job.lines("worker:0", attempt=1) == ["first"]


def test_a_job_waits_for_a_storage_that_does_not_answer(
    engine: Engine,
    s3: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        job = engine.submit(workers(HOLD, 2), storage=f"s3://{server.bucket()}")
        job.until_line("here 1", "worker:1")
        server.stop()
        (engine.folder / "go").touch()
        waiting = job.until_status("a wait for the storage", lambda status: "storage" in (status["waiting"] or ""))
        assert "waits for its storage: " in waiting["waiting"]
        server.start()
        job.succeeded()
        assert job.lines("worker:1") == ["here 1", "over 1"]


def test_a_master_that_starts_while_its_storage_is_away_waits_for_it(
    engine: Engine, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        job = engine.submit(workers(HOLD, 2), storage=f"s3://{server.bucket()}", timeouts={"grace": "5m"})
        for index in range(2):
            job.until_line(f"here {index}", f"worker:{index}")
        server.stop()
        for _ in range(2):
            (master,) = processes.living(job.id, processes.MASTER)
            os.kill(master.process.pid, signal.SIGKILL)
            until(lambda dead=master: [new for new in processes.living(job.id, processes.MASTER) if new != dead])
        words = job.storage / "logs" / "master" / "start.log"
        until(lambda: "waits for its storage: " in words.read_text(), what=words.read_text)
        server.start()
        (engine.folder / "go").touch()
        status = job.succeeded()
        assert [task["attempt"] for task in status["tasks"]] == [1, 1], job.story(status)


def test_a_reader_gets_or_is_told_of_every_byte_that_was_printed(engine: Engine, storage: str) -> None:
    printing = python(
        """
        import time
        for n in range(60_000):
            print(f"{n:099}")
            if n % 3000 == 0:
                time.sleep(0.05)
        """
    )
    job = engine.submit(workers(printing), storage=storage, logs={"limit": "1MiB", "first": "64KiB", "every": "100ms"})
    for follow in (True, False):
        at, seen, last = 0, 0, ""
        for piece in pieces(job.id, "worker:0", follow=follow):
            assert piece["offset"] == at
            at = piece["next"]
            if "left_out" in piece:
                assert f"{piece['left_out']} bytes left out here" in piece["data"]
            else:
                seen, last = seen + len(piece["data"]), piece["data"]
        assert at == 6_000_000
        assert last.endswith(f"{59_999:099}\n")
        assert 1024 * 1024 // 3 < seen <= 6_000_000
    assert seen < 1024 * 1024
    job.succeeded()
