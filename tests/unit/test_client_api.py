"""The Python API over real jobs: what a program sees that describes, submits and reads them."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_type_hints

import attrs
import pytest
from waiting import until

import trainmaster
from trainmaster import aio
from trainmaster.client.jobs.actions import retry
from trainmaster.client.jobs.places import job_storage
from trainmaster.client.spec import keys
from trainmaster.client.submit import submit as submission
from trainmaster.client.watch.follow import follow
from trainmaster.client.watch.results import Listed, Status, Task
from trainmaster.core.spec import job as model
from trainmaster.host.processes import MASTER, living

ROOT = Path(__file__).parents[2]


def job(command: str, **more: object) -> object:
    return trainmaster.Job(
        name="api", roles={"worker": {"command": command, "replicas": 2, "restart": "never"}}, **more
    )


def test_a_job_is_a_typed_class(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    made = trainmaster.Job(
        name="x", roles={"w": {"command": "true", "env": {"A": 1}}}, inputs={"t": {"url": "a", "as_": "list"}}
    )
    assert isinstance(made, trainmaster.Job)
    assert (made.name, made.inputs["t"].as_, made.roles["w"].env) == ("x", "list", {"A": "1"})
    signature = inspect.signature(trainmaster.Job)
    assert list(signature.parameters)[:3] == ["roles", "name", "framework"]
    assert copy.deepcopy(made) == made
    assert trainmaster.submit(made, directory=tmp_path, dry_run=True)["job"]["name"] == "x"
    assert asyncio.run(aio.submit(made, directory=tmp_path, dry_run=True))["engine"] == "local"
    assert trainmaster.jobs() == []


def test_the_types_name_every_key() -> None:
    """Of the job file, and of what a status tells."""

    def of(section: type) -> set[str]:
        return {field.name for field in attrs.fields(section) if field.metadata}

    parameters = set(inspect.signature(trainmaster.Job).parameters)
    assert parameters == of(model.Job) == set(get_type_hints(keys.Job))
    for name in ("Environment", "Replicas", "Resources", "Restart", "Stop", "Feed", "Nodes", "Role", "Input", "Output", "Checkpoint",
                 "Tensorboard", "Timeouts", "Completion", "Logs", "Saves", "Scale", "Secret", "Link", "Master"):  # fmt: skip
        assert of(getattr(model, name)) - {"name"} == set(get_type_hints(getattr(keys, name))), name


SNIPPET = """
import trainmaster

job = trainmaster.Job(name="a", framework="pytorch", roles={"worker": {"command": "true", "replicas": {"min": 1, "max": 2}}})
run = trainmaster.submit(job)
state: str = run.wait()["state"]
words: list[str] = [task["words"] for task in run.status()["tasks"]]
preview: dict[str, object] = trainmaster.submit(job, dry_run=True)
ids: list[str] = [found["id"] for found in trainmaster.jobs()]
trainmaster.Job(framwork="pytorch", roles={})  # framwork
trainmaster.Job(roles={"worker": {"command": "true", "replicsa": 2}})  # replicsa
trainmaster.Job(roles={"worker": {"command": "true", "restart": {"scope": "tsk"}}})  # Incompatible
run.status()["sttae"]  # sttae
trainmaster.submit(job, dry_run=True).id  # no attribute "id"
"""


def test_a_checker_of_types_refuses_what_is_misspelt(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    line = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--cache-dir",
        ROOT / ".mypy_cache",
        snippet,
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    lines = SNIPPET.splitlines()
    expected = {number: line.partition("  # ")[2] for number, line in enumerate(lines, 1) if "  # " in line}
    messages = {int(line.split(":")[1]): line for line in done.stdout.splitlines() if ": error: " in line}
    assert set(messages) == set(expected), done.stdout + done.stderr
    assert [number for number, word in expected.items() if word not in messages[number]] == [], done.stdout


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
    assert [(found["id"], found["engine"]) for found in trainmaster.jobs()] == [(run.id, "local")]
    assert [found["id"] for found in trainmaster.jobs("local")] == [run.id]
    assert set(Status.__required_keys__) <= set(status) <= set(get_type_hints(Status))
    for task in status["tasks"]:
        assert set(Task.__required_keys__) <= set(task) <= set(get_type_hints(Task))
    assert set(trainmaster.jobs()[0]) >= set(get_type_hints(Listed))


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


def ended_without_what_follows(directory: Path) -> tuple[trainmaster.Run, Path, list[bytes]]:
    """Return an ended job, its log as a reader sees it before `_SUCCESS` where no master answers, and the lines of the whole log."""
    run = trainmaster.submit(job("true"), directory=directory)
    run.wait()
    until(lambda: not living(run.id, MASTER))  # else it may still write
    (log,) = (job_storage(run.id) / "events").glob("*.jsonl")
    lines = log.read_bytes().splitlines(keepends=True)
    ended = next(n for n, line in enumerate(lines) if b'"type":"ended"' in line)
    log.write_bytes(b"".join(lines[: ended + 1]))
    return run, log, lines


def test_it_has_ended_once_what_follows_the_end_is_done(tmp_path: Path) -> None:
    run, log, lines = ended_without_what_follows(tmp_path)
    shown = len(log.read_bytes().splitlines())
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        assert len(waits) < 100
        if len(waits) == 3:
            log.write_bytes(b"".join(lines))

    items = list(follow(run.id, clock=lambda: 0.0, wait=wait))
    assert [name for item in items for name in item] == (
        ["event"] * shown + ["lost"] * 3 + ["event"] * (len(lines) - shown) + ["end"]
    )


def test_masters_that_die_of_what_follows_the_end_are_waited_for_a_few_times(tmp_path: Path) -> None:
    run, _, _ = ended_without_what_follows(tmp_path)
    waited, resumed = [0.0], list[str]()

    def resume(job: str) -> bool:
        resumed.append(job)
        return len(resumed) < 100

    items = list(follow(run.id, resume=resume, clock=lambda: sum(waited), wait=waited.append))
    assert items[-1]["end"]["state"] == "succeeded"
    assert resumed == [run.id] * 5


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
    doubtful = job("true", network="eth9")
    trainmaster.submit(doubtful, directory=tmp_path).wait()
    asyncio.run(awaited(doubtful, tmp_path))
    assert [(found.category, found.filename) for found in recwarn] == [(trainmaster.JobWarning, __file__)] * 2
    assert "network: changes nothing here" in str(recwarn[0].message)
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


def test_a_job_is_retried_from_a_thread_of_a_server(tmp_path: Path) -> None:
    first = trainmaster.submit(job("echo again"), directory=tmp_path)
    first.wait()
    with ThreadPoolExecutor(1) as pool:
        second = trainmaster.attach(pool.submit(retry, first.id).result())
    assert second.id != first.id
    assert second.wait()["state"] == "succeeded"
    assert list(second.logs("worker:0")) == ["again"]


def test_one_key_is_one_job(tmp_path: Path) -> None:
    runs = [trainmaster.submit(job("true"), directory=tmp_path, idempotency_key="k") for _ in range(2)]
    assert runs[0] == runs[1]
    runs[0].wait()


def test_a_key_of_another_job_is_refused(tmp_path: Path) -> None:
    """Whoever got the old job would take it for the new one."""
    first = trainmaster.submit(job("true"), directory=tmp_path, idempotency_key="k")
    with pytest.raises(trainmaster.BadInput, match=rf"the idempotency key k belongs to {first.id}") as refused:
        trainmaster.submit(job("false"), directory=tmp_path, idempotency_key="k")
    assert refused.value.place == f"roles.worker.command: false, in {first.id}: true"
    assert refused.value.anchor == "key-taken"
    assert [found["id"] for found in trainmaster.jobs()] == [first.id]
    first.wait()


def test_a_key_is_of_one_directory(tmp_path: Path) -> None:
    """The same words from another directory are another job: its relative paths and its files are others."""
    first = trainmaster.submit(job("true"), directory=tmp_path, idempotency_key="k")
    (tmp_path / "other").mkdir()
    with pytest.raises(trainmaster.BadInput) as refused:
        trainmaster.submit(job("true"), directory=tmp_path / "other", idempotency_key="k")
    assert refused.value.place == f"directory: {tmp_path}/other, in {first.id}: {tmp_path}"
    (tmp_path / "link").symlink_to(tmp_path)
    assert trainmaster.submit(job("true"), directory=tmp_path / "link", idempotency_key="k") == first
    first.wait()


def test_a_key_outlasts_a_version_that_knows_more_keys_of_a_job(tmp_path: Path) -> None:
    """What an earlier version did not know has its default there."""
    first = trainmaster.submit(job("true"), directory=tmp_path, idempotency_key="k")
    (place,) = (job_storage(first.id).parents[1] / "keys").iterdir()
    name, claim = place.read_text().splitlines()
    earlier = json.loads(claim)
    del earlier["job"]["saves"], earlier["job"]["roles"]["worker"]["restart"]["total"]
    place.write_text(f"{name}\n{json.dumps(earlier)}\n")
    assert trainmaster.submit(job("true"), directory=tmp_path, idempotency_key="k") == first
    with pytest.raises(trainmaster.BadInput) as refused:
        trainmaster.submit(job("true", saves={"keep": 5}), directory=tmp_path, idempotency_key="k")
    assert refused.value.place == f"saves.keep: 5, in {first.id}: 3"
    first.wait()


def test_a_submission_whose_id_is_taken_draws_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = trainmaster.submit(job("echo mine"), directory=tmp_path)
    other.wait()
    ids = iter([other.id, other.id, "api-bbbbbb"])
    monkeypatch.setattr(submission, "new_id", lambda name: next(ids))
    run = trainmaster.submit(job("true"), directory=tmp_path)
    assert run.id == "api-bbbbbb"
    run.wait()
    assert other.status()["state"] == "succeeded"
    assert sorted(other.logs("worker:0")) == ["mine"]


@pytest.mark.parametrize("awaits", [False, True])
def test_whoever_waits_has_the_outputs_here(tmp_path: Path, awaits: bool) -> None:
    """A job on a cluster commits to its storage there, and `wait` brings what its job file wanted on this machine."""
    there, here = tmp_path / "there", tmp_path / "here"
    outputs = {"model": {"url": str(there), "from": "worker:0", "layout": "flat"}}
    run = trainmaster.submit(job("mkdir -p model; echo new > model/x", outputs=outputs), directory=tmp_path)
    run.wait()
    site = job_storage(run.id) / "site.json"
    site.write_text(json.dumps({**json.loads(site.read_text()), "carried": {"outputs.model": str(here)}}))
    status = asyncio.run(aio.Run(run).wait()) if awaits else run.wait()
    assert status["outputs"] == {"model": str(here)}
    assert (here / "x").read_text() == "new\n"
    assert not list(there.rglob("x"))


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
