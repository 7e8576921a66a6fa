"""A job that a cluster has and this machine has not submitted: what is taken over of it."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from trainmaster.client.jobs import actions, adopting, removal
from trainmaster.client.jobs import cluster as clusters
from trainmaster.client.jobs.listing import headlines
from trainmaster.client.jobs.places import job_storage, site_of
from trainmaster.client.jobs.sweep import resume
from trainmaster.client.submit import for_cluster, submit
from trainmaster.client.watch import connect
from trainmaster.client.watch.follow import follow
from trainmaster.core.errors import BadInput, EngineFailed, StorageFailed
from trainmaster.core.machine.events import Event, encode
from trainmaster.core.spec.reading import job_from
from trainmaster.log.documents.jobs import place_of
from trainmaster.log.epochs import MasterRecord, signed, write_master
from trainmaster.log.storage import Damaged, Storage, storage_for
from trainmaster.log.writer import open_writer
from trainmaster.master import client_side

JOB = "hostile-aaaaaa"
KEYS: dict[str, Any] = {"name": "hostile", "roles": {"worker": {"command": "true"}}}


@attrs.define
class Cluster:
    """A namespace in which somebody has written a job."""

    note: dict[str, Any]
    present: str = "ended"
    asked: list[str] = attrs.field(factory=list)

    def find_jobs(self, _: str) -> dict[str, str]:
        return {JOB: f"context@namespace/{JOB}"}

    jobs = "configmaps://context@namespace"
    killed_as = "killed-by-user"

    def store(self, _: Any = None) -> Cluster:
        return self

    def job_access(self, _: str) -> dict[str, Any]:
        return self.note

    def master_payload(self, _: str) -> dict[str, Any]:
        return {"environ": {"PYTHONSTARTUP": "/tmp/evil"}}

    def application_state(self, _: str) -> tuple[str, str]:
        return self.present, "it was removed"

    def waiting_reason(self, application: str, _: Any) -> str:
        return f"the cluster has {application} as {self.present}"

    def link(self, application: str, job: Any = None) -> str:
        return f"https://cluster/{application}"

    def end(self, application: str) -> None:
        self.asked.append(f"end {application}")
        self.present = "killed"

    def forget(self, job: str, _: str) -> None:
        self.asked.append(f"forget {job}")


@pytest.fixture
def started(home: Any, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The masters that were started."""
    masters: list[object] = []
    monkeypatch.setattr(client_side, "start_master", lambda *told: masters.append(told))
    return masters


@pytest.fixture
def cluster(home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    site = {
        "engine": "local", "beside": True, "environ": {"LD_PRELOAD": "x"}, "cwd": str(tmp_path), "carried": {"outputs.a": "/etc"},
        "environment": "/tmp/evil", "secret_names": ["A"], "submitted": 5.0, "application": "other@other/other",
    }  # fmt: skip
    job = {**KEYS, "storage": f"memory://{uuid.uuid4()}/jobs"}
    namespace = Cluster({"job": job, "site": site, "token": "t", "certificate": "c", "shared": True, "submitted": 5.0})
    for module in (adopting, clusters, for_cluster, removal):
        monkeypatch.setattr(module, "client_side", lambda engine: namespace)
    return namespace


@pytest.fixture
def adopted(cluster: Cluster) -> str:
    [job_id] = adopting.adopt("kubernetes", JOB)
    return job_id


def followed(job: str) -> None:
    """Follow a job to its end, without waiting for the clock."""
    waited = [0.0]
    for _ in follow(job, resume=resume, clock=lambda: sum(waited), wait=waited.append):
        pass


def submitted(storage: str, engine: str = "yarn") -> str:
    """A job that this machine has submitted to a cluster."""
    folder = job_storage("mine-aaaaaa")
    folder.mkdir(parents=True, mode=0o700)
    facts = {"engine": engine, "application": "application_1_0001"}
    for name, content in {
        "token": "t",
        "site.json": json.dumps(facts),
        "job.json": json.dumps({**KEYS, "storage": storage}),
    }.items():
        (folder / name).write_text(content)
        os.utime(folder / name, (1.0, 1.0))
    return folder.name


def written(place: Storage, *kinds: str) -> None:
    facts: dict[str, dict[str, Any]] = {
        "submitted": {"id": JOB, "job": KEYS},
        "ended": {"state": "succeeded", "reason": "succeeded"},
    }
    writer = open_writer(place, 1, 0)
    writer.append([encode(Event(n, 100.0, 1, kind, facts[kind])) for n, kind in enumerate(kinds, 1)], sync=True)
    writer.close()


def test_of_anothers_job_nothing_is_taken_that_says_what_is_run_or_read_here(adopted: str) -> None:
    assert site_of(adopted) == {
        "engine": "kubernetes", "application": f"context@namespace/{JOB}", "secret_names": ["A"], "submitted": 5.0, "shared": True,
        "link": f"https://cluster/context@namespace/{JOB}",
    }  # fmt: skip
    with pytest.raises(BadInput, match="another machine"):
        submit.resubmit(adopted)


def test_no_master_of_this_machine_takes_up_anothers_job(adopted: str, started: list[object]) -> None:
    assert not resume(adopted)
    place = job_storage(adopted) / "site.json"
    place.write_text(json.dumps({**site_of(adopted), "beside": True}))
    assert not resume(adopted)
    assert started == []


@pytest.mark.parametrize("certificate", ["", "-----BEGIN CERTIFICATE-----\nMIIB"])
def test_a_damaged_certificate_is_named_with_its_mend(
    adopted: str, monkeypatch: pytest.MonkeyPatch, certificate: str
) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(Cluster, "reach", lambda *_: ours, raising=False)
    folder, token = job_storage(adopted), "a" * 64
    (folder / "token").write_text(token)
    (folder / "certificate").write_text(certificate)
    storage = storage_for(place_of(folder))
    storage.replace("master", signed(MasterRecord(1, ("10.0.0.1:1",)), token))
    with ours, theirs, pytest.raises(Damaged, match="certificate is damaged") as told:
        connect.live(adopted)
    assert told.value.place == str(folder / "certificate")
    assert f"tm kill --force {adopted}" in told.value.mend


@pytest.mark.parametrize("force", [False, True])
def test_a_kill_of_anothers_job_asks_the_cluster_alone(
    adopted: str, cluster: Cluster, started: list[object], force: bool
) -> None:
    """A master of this machine would act as this user, on the storage and the outputs that somebody has planted."""
    if force:
        written(storage_for(place_of(job_storage(adopted))), "submitted")
    cluster.present = "running"
    assert actions.kill(adopted, force=force) is None
    assert (cluster.asked, started) == ([f"end context@namespace/{JOB}"], [])
    with pytest.raises(EngineFailed, match="its end is not written yet"):
        followed(adopted)


@pytest.mark.parametrize(
    "begin", [lambda job: client_side.conclude(job, {}), lambda job: client_side.run(job, "yarn", "", {})]
)
def test_no_master_begins_in_a_directory_that_others_may_write_to(
    started: list[object], begin: Callable[[str], None]
) -> None:
    job = submitted("memory://somewhere")
    job_storage(job).chmod(0o777)
    with pytest.raises(BadInput, match="may be written by others"):
        begin(job)
    assert started == []


@pytest.mark.parametrize("signed_with", ["", "another", "t"])
def test_of_anothers_job_the_storage_is_removed_where_its_master_has_signed_alone(
    adopted: str, cluster: Cluster, capsys: pytest.CaptureFixture[str], signed_with: str
) -> None:
    """Whoever may write to the namespace can have a job name a place that is the user's and not the job's."""
    storage = storage_for(place_of(job_storage(adopted)))
    written(storage, "submitted", "ended")
    storage.replace("thesis.tex", b"x")
    if signed_with:
        write_master(storage, MasterRecord(1, ("10.0.0.1:1",)), signed_with)
    is_own = signed_with == "t"
    assert (storage.url in removal.places(adopted)) is is_own
    removal.remove(adopted)
    assert storage.exists("thesis.tex") is not is_own
    assert cluster.asked == [f"forget {JOB}"]
    assert not job_storage(adopted).exists()
    assert (f"{storage.url} is its own: that stays" in capsys.readouterr().err) is not is_own


@pytest.mark.usefixtures("cluster")
def test_a_master_that_is_quicker_than_its_submit_is_not_reached_yet() -> None:
    job = submitted("memory://quick")
    site = {name: value for name, value in site_of(job).items() if name != "application"}
    (job_storage(job) / "site.json").write_text(json.dumps(site))
    write_master(storage_for(place_of(job_storage(job))), MasterRecord(1, ("10.0.0.1:1",)), "t")
    assert connect.live(job) is None


def test_a_storage_that_is_a_path_must_be_there(cluster: Cluster, tmp_path: Path) -> None:
    def adapted(place: Path) -> str:
        return for_cluster.adapted(job_from({**KEYS, "storage": f"file://{place}"}), "yarn").storage

    with pytest.raises(BadInput, match=f"{tmp_path}/mounted is not a directory of this machine") as refused:
        adapted(tmp_path / "mounted")
    assert (refused.value.place, refused.value.anchor) == (f"storage: file://{tmp_path}/mounted", "not-on-the-cluster")
    (tmp_path / "mounted").mkdir()
    assert adapted(tmp_path / "mounted") == f"file://{tmp_path}/mounted"


def test_a_log_at_a_path_that_only_the_nodes_have_gets_no_end_here(
    cluster: Cluster, started: list[object], tmp_path: Path
) -> None:
    """The job may have succeeded; an end that is written here would say that it was killed."""
    (tmp_path / "store").mkdir()
    job = submitted(f"file://{tmp_path}/store")
    unreadable = "mine-aaaaaa is unreadable: the cluster has application_1_0001 as ended"
    with pytest.raises(StorageFailed, match=unreadable):
        connect.status(job)
    with pytest.raises(StorageFailed, match=unreadable):
        followed(job)
    assert os.listdir(tmp_path / "store") == []
    assert [(row.word, row.unreadable.partition("; ")[2]) for row in headlines()] == [
        ("unreadable", "the cluster has application_1_0001 as ended")
    ]
    written(storage_for(place_of(job_storage(job))), "submitted")
    assert [row.word for row in headlines()] == ["pending"], "it is mounted now"
    assert started == []
    assert resume(job), "its master died before it had written the end"
    assert len(started) == 1
