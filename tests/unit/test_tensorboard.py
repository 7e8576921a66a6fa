"""TensorBoard of a job: the task that its key adds, and where event files are looked for when the job is over."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from trainmaster.client import tensorboard
from trainmaster.client.submit.submit import place
from trainmaster.core.errors import BadInput, NotFound
from trainmaster.core.machine.state import State, populate
from trainmaster.core.spec.job import Job
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.core.spec.threads import tasks_at_once


def board(logs: str, engine: str = "local", base: str = "/base", **role: Any) -> Job:
    job = job_from({"roles": {"worker": {"command": "true", "replicas": 2, **role}}, "tensorboard": logs})
    return tensorboard.with_board(job, Path(base), engine)


def command(job: Job) -> str:
    line = job.roles["tensorboard"].command
    assert isinstance(line, str)
    return line


@pytest.mark.parametrize(
    ("logs", "engine", "shown"),
    [
        ("events", "local", "/base/events"), ("/shared/e", "local", "/shared/e"), ("/shared/e", "yarn", "/shared/e"),
        ("file:///mnt/a b", "yarn", "'/mnt/a b'"), ("hdfs:///logs", "yarn", "tensorboard-logs"),
        ("s3://b/l", "local", "tensorboard-logs"),
    ],
)  # fmt: skip
def test_a_job_with_the_key_has_one_more_task_that_does_not_count(logs: str, engine: str, shown: str) -> None:
    job = board(logs, engine)
    host = "--host 127.0.0.1" if engine == "local" else "--bind_all"
    assert command(job) == f'tensorboard --logdir {shown} --port "$TRAINMASTER_PORT_BOARD" {host}'
    role = job.roles["tensorboard"]
    assert (role.counts, role.serves, role.replicas.max, role.restart.scope) == (False, False, 1, "task")
    assert job_to(job)["links"]["TensorBoard"] == {
        "role": "tensorboard",
        "index": 0,
        "port": "board",
        "path": "/",
        "scheme": "http",
    }
    assert job_from(job_to(job)) == job
    assert tensorboard.with_board(job, Path("/else"), engine) == job, "a job that is submitted again has it already"


def test_event_files_at_a_url_are_followed_by_the_task_of_tensorboard() -> None:
    """Neither TensorFlow nor TensorBoard alone reads every storage that a job may use."""
    job = board("hdfs:///logs/", "yarn")
    followed = job.inputs["tensorboard-logs"]
    assert (followed.as_, followed.url, followed.to) == ("follow", "hdfs:///logs/**/*tfevents*", ("tensorboard",))
    assert job.roles["tensorboard"].workdir == "copy", "the copy is the task's own"
    assert board("/shared/logs", "yarn").inputs == {}


def test_logs_in_a_directory_of_each_task_are_named_by_task() -> None:
    line = command(board("my logs", workdir="copy"))
    assert line.startswith("work=")
    assert "--logdir_spec worker-0:\"$work\"/'worker-0/my logs',worker-1:\"$work\"/'worker-1/my logs' --port" in line


def test_logs_that_tensorboard_would_not_see_on_a_cluster_are_refused() -> None:
    with pytest.raises(BadInput, match="does not see it on yarn") as refusal:
        board("events", "yarn")
    assert refusal.value.place == "tensorboard.logs: events"
    with pytest.raises(BadInput, match=r"without \.\."):
        board("../events")


def test_a_role_of_this_name_of_the_users_own_stays(tmp_path: Path) -> None:
    roles = {"worker": {"command": "true"}, "tensorboard": {"command": "true", "counts": False}}
    job = job_from({"roles": roles, "tensorboard": "events"})
    assert tensorboard.with_board(job, tmp_path, "local") is job


def test_it_takes_no_core_and_no_share_of_the_cores(home: Any) -> None:
    from trainmaster.client.jobs.backends import backend

    job = job_from({"roles": {"worker": {"command": "true", "replicas": 2}}, "tensorboard": "events"})
    placed, _ = place(job, home.state.parent, {}, backend("local"))
    assert round(placed.roles["tensorboard"].resources.cores * 1000) == 0
    state = State(id="t")
    populate(state, placed)
    state.groups[0].opened = True
    assert (len(state.tasks), tasks_at_once(state)) == (3, 2)


def past(home: Any, job: dict[str, Any], **site: Any) -> str:
    folder = home.state / "jobs" / "t-abcdef"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(job_to(job_from({"name": "t", **job}))))
    (folder / "site.json").write_text(json.dumps({"engine": "local", **site}))
    return "t-abcdef"


def event_file(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1.host").write_bytes(b"")
    return str(folder)


def test_event_files_are_found_in_outputs_checkpoints_and_logs(home: Any, tmp_path: Path) -> None:
    roles = {
        "worker": {"command": "true", "replicas": 2, "workdir": "share"},
        "evaluator": {"command": "true", "workdir": "share"},
    }
    outputs = {
        "model": str(tmp_path / "model"),
        "flat": {"url": f"file://{tmp_path}/flat", "layout": "flat"},
        "s": str(tmp_path / "s"),
    }
    job = past(
        home, {"roles": roles, "outputs": outputs, "checkpoint": "ckpt", "tensorboard": str(tmp_path / "logs")}, cwd=str(tmp_path)
    )  # fmt: skip
    assert tensorboard.event_folders(job) == {}
    found = {
        job: event_file(tmp_path / "logs"),
        f"{job}/worker-1/model": event_file(tmp_path / "model" / "worker-1"),
        f"{job}/flat": f"file://{event_file(tmp_path / 'flat')}",
    }
    assert tensorboard.event_folders(job) == found
    event_file(tmp_path / "ckpt" / "deep" / "er")
    assert tensorboard.event_folders(job) == found | {f"{job}/ckpt": str(tmp_path / "ckpt")}
    with tensorboard.launching(found, 6007, "secret") as (command, environ):
        flags = Path(command[-1].removeprefix("--flagfile="))
        assert f",{job}/flat:{tmp_path}/flat" in flags.read_text()
        assert "secret" not in " ".join(command)
        assert environ["TMPDIR"] == str(flags.parent)
        assert flags.parent.stat().st_mode & 0o077 == 0
    with pytest.raises(BadInput, match="comma"), tensorboard.launching({"x": "/a,b"}, 1, "secret"):
        pass


def test_the_port_is_the_one_asked_for_or_the_next_that_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port} is taken"):
            tensorboard.free_port(port)
    assert tensorboard.free_port(0) > 0
    assert tensorboard.PORT <= tensorboard.free_port(None) < tensorboard.PORT + 100


def test_without_tensorboard_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotFound, match="TensorBoard is not installed"):
        tensorboard.program()
