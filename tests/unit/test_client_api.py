"""The Python API over real jobs: what a program sees that describes, submits and reads them."""

from __future__ import annotations

import asyncio
import threading
import warnings
from pathlib import Path

import pytest

import trainmaster
from trainmaster import aio
from trainmaster.client.follow import follow
from trainmaster.client.places import job_storage


def job(command: str, **more: object) -> object:
    return trainmaster.Job(
        name="api", roles={"worker": {"command": command, "replicas": 2, "restart": "never"}}, **more
    )


def test_a_job_is_submitted_and_read(tmp_path: Path) -> None:
    run = trainmaster.submit(job("echo hello $TRAINMASTER_INDEX; pwd"), directory=tmp_path)
    assert run.handle.startswith("local://")
    assert run.handle.endswith(f"/{run.id}")
    status = run.wait()
    assert (status["state"], len(status["tasks"])) == ("succeeded", 2)
    assert list(run.logs("worker:1")) == ["hello 1", str(tmp_path)]
    assert sorted(run.logs())[:2] == [f"worker:0 {tmp_path}", "worker:0 hello 0"]
    assert [event["type"] for event in run.events()][-1] == "step-done"
    assert trainmaster.attach(run.id[:5]) == run
    assert trainmaster.status(run.id)["state"] == "succeeded"
    assert [found["id"] for found in trainmaster.jobs()] == [run.id]


def test_output_comes_while_it_runs(tmp_path: Path) -> None:
    run = trainmaster.submit(job("echo first; while [ ! -e go ]; do sleep 0.02; done; echo last"), directory=tmp_path)
    lines = run.logs("worker:0", follow=True)
    assert next(lines) == "first"
    with pytest.raises(TimeoutError):
        run.wait(timeout=0)
    (tmp_path / "go").touch()
    assert list(lines) == ["last"]
    run.wait()


def test_a_failure_is_an_error_that_says_why(tmp_path: Path) -> None:
    run = trainmaster.submit(
        {"roles": {"worker": {"command": "echo bad luck; exit 3", "restart": "never"}}}, directory=tmp_path
    )
    with pytest.raises(trainmaster.JobFailed, match=r"worker:0 exited with status 3\n  \| bad luck") as failed:
        run.wait()
    assert failed.value.status == 1
    assert run.wait(check=False)["state"] == "failed"


def test_it_has_ended_once_what_follows_the_end_is_done(tmp_path: Path) -> None:
    run = trainmaster.submit(job("true"), directory=tmp_path)
    run.wait()
    (log,) = (job_storage(run.id) / "events").glob("*.jsonl")
    lines = log.read_bytes().splitlines(keepends=True)
    ended = next(n for n, line in enumerate(lines) if b'"type":"ended"' in line)
    log.write_bytes(b"".join(lines[: ended + 1]))  # what a reader sees before `_SUCCESS`, where no master answers
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            log.write_bytes(b"".join(lines))

    items = list(follow(run.id, clock=lambda: 0.0, wait=wait))
    assert [name for item in items for name in item] == (
        ["event"] * (ended + 1) + ["lost"] * 3 + ["event"] * (len(lines) - ended - 1) + ["end"]
    )


def test_a_kill_ends_it(tmp_path: Path) -> None:
    run = trainmaster.submit(job("sleep 1000"), directory=tmp_path)
    run.kill("enough")
    assert run.wait(check=False)["state"] == "killed"


def test_errors_are_also_the_builtin_that_they_mean() -> None:
    with pytest.raises(ValueError, match="did you mean roles"):
        trainmaster.Job(name="x", rolse={})
    with pytest.raises(LookupError):
        trainmaster.attach("nothing")
    assert (
        trainmaster.Job(roles={"w": {"command": "true"}}, outputs={"o": {"url": "x", "from_": "w:0"}})
        .outputs["o"]
        .from_
        == "w:0"
    )


def test_what_is_likely_not_meant_is_a_warning(tmp_path: Path, home, recwarn: pytest.WarningsRecorder) -> None:
    doubtful = job("true", tensorboard={"logs": "events"})
    trainmaster.submit(doubtful, directory=tmp_path).wait()
    asyncio.run(awaited(doubtful, tmp_path))
    assert [(found.category, found.filename) for found in recwarn] == [(trainmaster.JobWarning, __file__)] * 2
    assert "tensorboard: changes nothing here" in str(recwarn[0].message)
    before = len(trainmaster.jobs())
    with warnings.catch_warnings():
        warnings.simplefilter("error", trainmaster.JobWarning)
        with pytest.raises(trainmaster.JobWarning):
            trainmaster.submit(doubtful, directory=tmp_path)
    assert len(trainmaster.jobs()) == before == 2, "nothing was started"


async def awaited(given: object, directory: Path) -> None:
    await (await aio.submit(given, directory=directory)).wait()


def test_submitting_beside_threads_is_safe(tmp_path: Path) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert trainmaster.submit(job("true"), directory=tmp_path).wait()["state"] == "succeeded"
    finally:
        done.set()
        thread.join()


def test_one_key_is_one_job(tmp_path: Path) -> None:
    runs = [trainmaster.submit(job("true"), directory=tmp_path, idempotency_key="k") for _ in range(2)]
    assert runs[0] == runs[1]
    runs[0].wait()


def test_it_can_be_awaited(tmp_path: Path) -> None:
    async def main() -> None:
        run = await aio.submit(job("echo $TRAINMASTER_INDEX"), directory=tmp_path)
        lines = [line async for line in run.logs(follow=True)]
        assert sorted(lines) == ["worker:0 0", "worker:1 1"]
        assert (await run.wait())["state"] == "succeeded"
        assert (await aio.status(run.id))["state"] == "succeeded"
        assert [line async for line in aio.logs(run.id, "worker:1")] == ["1"]
        bad = await aio.submit(job("exit 1"), directory=tmp_path)
        with pytest.raises(trainmaster.JobFailed):
            await bad.wait()
        slow = await aio.submit(job("sleep 1000"), directory=tmp_path)
        with pytest.raises(TimeoutError):
            await slow.wait(timeout=0.1)
        await slow.kill()
        assert (await slow.wait(check=False))["state"] == "killed"

    asyncio.run(main())
