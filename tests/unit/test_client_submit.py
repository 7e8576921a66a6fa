"""What submit does before anything is started: ids, handles, secrets, the files that are shipped."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from trainmaster.client.jobs import this_machine
from trainmaster.client.jobs.backends import backend
from trainmaster.client.jobs.handles import parse, resolve
from trainmaster.client.jobs.places import job_draft, job_ids, keep_draft
from trainmaster.client.spec.describe import describe, job_warnings
from trainmaster.client.spec.secrets import names, of_stores, separated
from trainmaster.client.submit import idempotency
from trainmaster.client.submit.checks import check
from trainmaster.client.submit.files import shipped_files
from trainmaster.client.submit.submit import new_id, place, record, site_facts, submit
from trainmaster.core.errors import BadInput, NotFound, StorageFailed
from trainmaster.core.machine.events import Event, encode
from trainmaster.core.spec.job import Job, Output, Role, Secret
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.core.spec.redaction import ALL_ROLES, secrets_of
from trainmaster.engines.kubernetes.client import KubernetesClient
from trainmaster.engines.local import launch
from trainmaster.log.documents import files
from trainmaster.log.storage import LocalStorage
from trainmaster.log.writer import open_writer


@pytest.mark.parametrize(
    ("name", "begins"),
    [("digits", "digits-"), ("My Job (2)", "my-job-2-"), ("é", "job-"), ("x" * 200, "x" * 40 + "-"), ("-a-", "a-")],
)
def test_an_id_is_a_plain_name_and_six_characters(name: str, begins: str) -> None:
    made = new_id(name)
    assert made.startswith(begins)
    assert len(made) == len(begins) + 6
    assert new_id(name) != made


def test_a_beginning_names_a_job(home) -> None:
    for name in ("digits-aaaaaa", "digits-bbbbbb", "mnist-cccccc"):
        (home.state / "jobs" / name).mkdir(parents=True)
    assert resolve("mnist") == "mnist-cccccc"
    assert resolve("digits-a") == "digits-aaaaaa"
    assert resolve("local://anywhere/digits-bbbbbb") == "digits-bbbbbb"
    assert resolve("local:///mn") == "mnist-cccccc"
    with pytest.raises(BadInput, match="beginning of 2 jobs: digits-aaaaaa, digits-bbbbbb"):
        resolve("digit")
    with pytest.raises(NotFound, match=r"there is no job mnits-cccccc; did you mean mnist-cccccc\?"):
        resolve("mnits-cccccc")


def test_a_name_is_the_job_of_it_that_runs_else_the_newest(home) -> None:
    """`tm kill digits` means the present one, however often it was run before; never one of two."""

    def told(job: str, at: float, *kinds: str) -> None:
        writer = open_writer(LocalStorage(home.state / "jobs" / job), 1, 0)
        facts = {
            "submitted": {"id": job, "job": {"name": "digits"}},
            "ended": {"state": "succeeded", "reason": "succeeded"},
        }
        writer.append([encode(Event(n, at, 1, kind, facts[kind])) for n, kind in enumerate(kinds, 1)], sync=True)
        writer.close()

    told("digits-aaaaaa", 100.0, "submitted", "ended")
    told("digits-bbbbbb", 300.0, "submitted", "ended")
    told("digits-shards-cccccc", 400.0, "submitted")
    assert resolve("digits") == "digits-bbbbbb"
    assert resolve("digits-shards") == "digits-shards-cccccc"
    told("digits-dddddd", 200.0, "submitted")
    assert resolve("digits") == resolve("local://here/digits") == "digits-dddddd"
    assert resolve("digits-b") == "digits-bbbbbb"
    told("digits-eeeeee", 250.0, "submitted")
    with pytest.raises(BadInput, match="2 jobs named digits are running: digits-eeeeee, digits-dddddd"):
        resolve("digits")


@pytest.mark.parametrize("name", ["My_Job.v2", "my-job-v2", "MY JOB V2", "x" * 60])
def test_a_job_is_found_by_the_name_that_it_was_given(home, name: str) -> None:
    made = new_id(name)
    for job in (made, "my-job-v222-aaaaaa", "x-bbbbbb"):
        (home.state / "jobs" / job).mkdir(parents=True)
    assert resolve(name) == made
    with pytest.raises(NotFound):
        resolve("X_B")  # a name is meant, not a part of an id


@pytest.mark.parametrize("text", ["", "../x", "a/b", "local://h/", ".hidden"])
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse(text)


def test_a_url_with_a_password_leaves_the_job(tmp_path: Path) -> None:
    left, values = separated(job({"DATABASE": "db://me:hunter2@here", "A": "x"}), {}, tmp_path)
    assert left.roles["worker"].env == {"DATABASE": None, "A": "x"}
    assert values == {"worker": {"DATABASE": "db://me:hunter2@here"}}


def test_a_resumed_jobs_environment_holds_no_secrets_and_goes_with_the_job(tmp_path: Path) -> None:
    environ = {"PGPASSWORD": "hunter2", "http_proxy": "http://ann:hunter2@proxy:3128", "GREETING": "hello"}
    launch.keep(tmp_path, environ, {})
    (kept,) = tmp_path.iterdir()
    assert "hunter2" not in kept.read_text()
    assert "hello" in kept.read_text()
    launch.forget(tmp_path)
    launch.forget(tmp_path)
    assert not list(tmp_path.iterdir())


def job(env: dict[str, str | None], **more: object) -> Job:
    return Job(roles={"worker": Role("worker", "true", env=env)}, **more)


def test_secret_values_leave_the_job(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("hunter2\n")
    given = job(
        {"HF_TOKEN": None, "MY_PASSWORD": "in-the-file", "PLAIN": "x"},
        secrets={"DB": Secret(file="pw"), "E": Secret(env="F")},
    )
    plain, values = separated(given, {"HF_TOKEN": "t0ken", "F": "f"}, tmp_path)
    assert values == {
        ALL_ROLES: {"DB": "hunter2", "E": "f"},
        "worker": {"HF_TOKEN": "t0ken", "MY_PASSWORD": "in-the-file"},
    }
    assert plain.roles["worker"].env == {"HF_TOKEN": None, "MY_PASSWORD": None, "PLAIN": "x"}
    assert not any(value in repr(attrs.asdict(plain)) for value in ("t0ken", "in-the-file", "hunter2"))


def test_a_variable_that_is_not_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"HF_TOKEN is not set[^$]*roles\.worker\.env\.HF_TOKEN"):
        separated(job({"HF_TOKEN": None}), {}, tmp_path)
    with pytest.raises(BadInput, match=r"secrets\.DB\.file: nowhere"):
        separated(job({}, secrets={"DB": Secret(file="nowhere")}), {}, tmp_path)


def test_what_opens_the_stores_that_a_job_names_is_reported_and_no_more() -> None:
    environ = {"AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "r", "AZURE_KEY": "y", "PATH": "/bin"}
    on_s3 = job({}, outputs={"model": Output("model", "s3://bucket/x")})
    assert of_stores(on_s3, environ) == {"AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "r"}
    assert of_stores(job({}, storage="hdfs:///jobs"), environ) == {}


def test_each_role_has_its_own_secrets(tmp_path: Path) -> None:
    roles = {name: Role(name, "true", env={"A_TOKEN": name}) for name in ("worker", "ps")}
    _, values = separated(Job(roles=roles, secrets={"A_TOKEN": Secret(env="B")}), {"B": "all"}, tmp_path)
    assert values == {ALL_ROLES: {"A_TOKEN": "all"}, "worker": {"A_TOKEN": "worker"}, "ps": {"A_TOKEN": "ps"}}
    assert names(values) == ["A_TOKEN"]
    assert secrets_of(values, "ps") == {ALL_ROLES: {"A_TOKEN": "all"}, "ps": {"A_TOKEN": "ps"}}
    assert secrets_of(values, "evaluator") == {ALL_ROLES: {"A_TOKEN": "all"}}, (
        "no container gets another role's secrets"
    )
    assert secrets_of({}, "ps") == {}


def test_more_than_anybody_ships_on_purpose_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(3 * 2**30)  # a hole
    with pytest.raises(BadInput, match="3 GiB, more than 2 GiB"):
        shipped_files(job({}), tmp_path)
    (tmp_path / ".gitignore").write_text("data.bin\n")
    assert shipped_files(job({}), tmp_path) == ([(".gitignore", 9), ("train.py", 0)], [])


def test_what_runs_by_hand_have_written_is_shipped_where_it_is_named(tmp_path: Path) -> None:
    for name in ("train.py", "out/model/old", "ckpt/epoch-20", "scores/1", "records/1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    outputs = {
        "model": {"url": "s3://m", "local": "out/model"}, "scores": {"url": "s3://s"}, "records": {"url": "s3://r", "as": "stream"},
    }  # fmt: skip
    keys = {"name": "j", "roles": {"worker": {"command": "x"}}, "outputs": outputs, "checkpoint": {"path": "./ckpt/"}}

    def shipped(*files: str) -> list[str]:
        given = job_from(keys | ({"files": list(files)} if files else {}))
        return [name for name, _ in shipped_files(given, tmp_path)[0]]

    assert shipped() == ["records/1", "train.py"]
    assert shipped(".", "ckpt") == ["ckpt/epoch-20", "records/1", "train.py"]
    assert shipped("train.py", "out") == ["out/model/old", "train.py"]


def test_a_path_with_a_colon_is_no_url_and_a_tilde_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "me").mkdir()
    (tmp_path / "me" / "x.tar.gz").touch()
    keys = {"roles": {"worker": {"command": "x"}}, "archives": ["~/x.tar.gz#there", "s3://b/y.zip"]}
    given = job_from(keys | {"inputs": {"a": {"url": "data:v2/x.csv"}, "b": {"url": "s3://data/x"}}})
    plain, values = place(given, tmp_path, {}, backend("local"))
    assert [one.url for one in plain.inputs.values()] == [f"{tmp_path}/data:v2/x.csv", "s3://data/x"]
    assert site_facts(plain, tmp_path, values)["archives"] == [f"{tmp_path}/me/x.tar.gz#there", "s3://b/y.zip"]


@pytest.mark.parametrize("key", ["", "k"])
def test_a_place_that_cannot_keep_a_job_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRAINMASTER_STATE_DIR", str(tmp_path / "file" / "state"))
    with pytest.raises(StorageFailed, match=r"could not keep the job: [^$]*file/state[^$]*set TRAINMASTER_STATE_DIR"):
        submit(job({}), base=tmp_path, key=key)
    with pytest.raises(StorageFailed, match=r"could not read the jobs: [^$]*file/state/jobs"):
        resolve("digits")


def test_nobody_sees_half_of_a_job(home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory has its name once all that commands read of a job is in it; the directory of one that could not be kept is gone."""
    seen, write = [], files.write

    def looking(path: Path, document: Mapping[str, Any]) -> None:
        seen.append(job_ids())
        write(path, document)
        if path.name == "job.json" and document["name"] == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(files, "write", looking)
    facts: dict[str, Any] = {"token": "t"}
    with record(job({}, name="whole"), {}, facts, "", {}) as name:
        assert job_ids() == [name]
        assert sorted(os.listdir(home.state / "jobs" / name)) == ["job.json", "site.json", "token"]
    assert seen == [[], []]
    with pytest.raises(StorageFailed, match="could not keep the job"), record(job({}, name="full"), {}, facts, "", {}):
        pass
    assert os.listdir(home.state / "jobs") == [name]


def test_a_draft_leaves_another_job_alone(home) -> None:
    with job_draft() as draft:
        (draft / "token").write_text("first")
        assert keep_draft(draft, "digits-aaaaaa")
    with job_draft() as draft:
        assert not keep_draft(draft, "digits-aaaaaa")
    assert os.listdir(home.state / "jobs") == ["digits-aaaaaa"]
    assert (home.state / "jobs" / "digits-aaaaaa" / "token").read_text() == "first"


def test_a_key_that_a_dead_submitter_has_is_freed_once(tmp_path: Path, home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two wait for it in vain; the later one does not free what the earlier one has taken by then."""
    dead, next_one = home.state / "jobs" / "dead-aaaaaa", home.state / "jobs" / "next-bbbbbb"
    (home.state / "jobs").mkdir(parents=True)
    assert idempotency.take("k", dead.name, {})
    looked = []

    def beginning(name: str) -> bool:
        looked.append(name)
        if name == dead.name:  # the earlier one sees it too, and is quicker
            idempotency.give_up("k", name)
            assert idempotency.take("k", next_one.name, {})
            (next_one / "logs").mkdir(parents=True)
        return False

    monkeypatch.setattr(this_machine, "beginning", beginning)
    assert idempotency._submitted_under("k") == next_one.name
    assert looked == [dead.name]


def test_a_key_is_held_as_long_as_a_master_has_to_begin(home, monkeypatch: pytest.MonkeyPatch) -> None:
    token = home.state / "jobs" / "slow-aaaaaa" / "token"
    token.parent.mkdir(parents=True)
    token.touch()
    assert idempotency.take("k", "slow-aaaaaa", {})
    monkeypatch.setattr(time, "sleep", lambda seconds: (token.parent / "logs").mkdir())
    os.utime(token, (time.time() - 20, time.time() - 20))
    assert idempotency._submitted_under("k") == "slow-aaaaaa"
    (token.parent / "logs").rmdir()
    os.utime(token, (time.time() - 40, time.time() - 40))
    assert idempotency._submitted_under("k") == ""


def test_a_key_is_kept_while_a_cluster_cannot_be_asked_for_its_job(
    tmp_path: Path, home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster may have taken the job before its submitter died; nobody knows before it answers."""
    folder = home.state / "jobs" / "old-aaaaaa"
    folder.mkdir(parents=True)
    for name, content in (("token", "x"), ("site.json", '{"engine": "yarn"}')):
        (folder / name).write_text(content)
        os.utime(folder / name, (1.0, 1.0))
    assert idempotency.take("k", folder.name, {})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(BadInput, match="nowhere"):
        submit(job({}), base=tmp_path, key="k")
    assert idempotency._holder("k") == folder.name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "--epochs", "3"], "train"),
        (["python3.11", "-c", "import time; time.time()"], "python3-11"),
        (["sh", "-c", "exit 0"], "sh"),
        (["./bin/eval.sh"], "eval"),
        (["/usr/bin/python", "src/a/fit.py"], "fit"),
        (["true"], "true"),
        (["sleep", "0.5"], "sleep"),
    ],
)
def test_a_job_is_called_after_its_program(command: list[str], name: str) -> None:
    assert describe(None, {}, command).job.name == name


def test_a_job_files_directory_is_one_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job.yaml").write_text("roles: {worker: {command: exit 0}}\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert describe("../job.yaml", {}, []).base == describe(str(tmp_path / "job.yaml"), {}, []).base == tmp_path


def test_what_is_likely_not_meant_is_said(tmp_path: Path) -> None:
    assert list(job_warnings(describe(None, {}, ["true"]).job)) == []
    shards = {"input": (f"x:shards={tmp_path}/*.csv",)}
    output = {"output": (f"m={tmp_path}/out",)}
    kept = {"checkpoint": "ckpt"}
    task, never = ({"set": (f"roles.worker.restart={{scope: {scope}}}",)} for scope in ("task", "never"))
    for given, said in (
        (shards, "no checkpoint"),
        (output, "not sure to be there again"),
        (shards | kept | task, "task by task"),
    ):
        (doubt,) = job_warnings(describe(None, given, ["true"]).job)
        assert said in doubt
        assert list(job_warnings(describe(None, given | never, ["true"]).job)) == []
    assert list(job_warnings(describe(None, output | kept, ["true"]).job)) == []
    assert list(job_warnings(describe(None, shards | kept, ["true"]).job)) == []  # they restart together


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"environment": {"image": "x"}}, "environment.image: x"),
        ({"roles": {"worker": {"command": "true", "image": "nosuch:1"}}}, "roles.worker.image: nosuch:1"),
        (
            {"roles": {"worker": {"command": "true", "nodes": {"labels": {"gpu": "a100"}}}}},
            "asks for a node with gpu=a100, and this machine has no labels\n  roles.worker.nodes.labels: gpu=a100",
        ),
    ],
)
def test_what_is_not_to_be_had_here_is_refused(keys: dict[str, object], key: str) -> None:
    job = job_from({"roles": {"worker": {"command": "true"}}, **keys})
    with pytest.raises(BadInput, match=key):
        check(job, backend("local"), job)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("network", "eth9"), ("master", {"env": {"A": "b"}}), ("logs.every", {"every": "1s"}),
    ],
)  # fmt: skip
def test_what_changes_nothing_here_is_said(key: str, value: object) -> None:
    worker = {"command": "true", "ports": ["main"]}
    (doubt,) = job_warnings(job_from({"roles": {"worker": worker}, key.partition(".")[0]: value}))
    assert doubt.startswith(f"{key}: changes nothing here; ")


def test_a_shared_working_directory_on_a_cluster_is_warned_of_where_it_was_written() -> None:
    written = describe(None, {"set": ("roles.worker.workdir=share",)}, ["true"])
    (warning,) = [text for text in job_warnings(written.job, "yarn", written.origins) if "workdir" in text]
    assert warning.startswith("role worker has workdir: share, and on yarn each task has a directory of its own")
    assert not [text for text in job_warnings(written.job, "local", written.origins) if "workdir" in text]
    default = describe(None, {}, ["true"])
    assert not [text for text in job_warnings(default.job, "yarn", default.origins) if "workdir" in text]


def test_a_role_that_restarts_without_a_checkpoint_is_warned_of_where_its_directory_may_not_be_there_again() -> None:
    role = {"command": "true", "replicas": {"min": 2, "max": 3}}
    jobs = [
        job_from({"framework": "pytorch", "roles": {"worker": {**role, **more}}}) for more in ({}, {"workdir": "copy"})
    ]
    warned = [
        [any("the job has no checkpoint" in text for text in job_warnings(job, engine)) for job in jobs]
        for engine in ("local", "yarn", "kubernetes")
    ]
    assert warned == [[False, True], [True, True], [True, True]]


def test_an_environment_that_an_engine_cannot_fetch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes brings what this machine has; its client would need a cluster here."""
    monkeypatch.setattr(KubernetesClient, "check", lambda self, job, requests: None)
    job = job_from({"environment": {"archive": "s3://b/env.tar.gz"}, "roles": {"worker": {"command": "true"}}})
    with pytest.raises(BadInput, match="kubernetes brings an archive that is a file of this machine"):
        check(job, backend("kubernetes"), job)


@pytest.mark.parametrize(("engine", "limit"), [("local", None), ("spark", 2**30)])
def test_clusters_limit_the_memory_of_programs_that_ask_for_none(
    tmp_path: Path, engine: str, limit: int | None
) -> None:
    given = job_from({"name": "t", "roles": {"worker": {"command": "true"}}})
    placed, _ = place(given, tmp_path, {}, backend(engine))
    assert placed.roles["worker"].resources.memory == limit
    assert job_from(job_to(placed)) == placed
