"""A submission to YARN that fails leaves nothing of its own, and all of others'; keytabs and pages are for whom they are meant."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import attrs
import pytest

from trainmaster.client.jobs import adopting
from trainmaster.core.errors import BadInput, EngineFailed
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.contract import Submission
from trainmaster.engines.yarn import client as yarn_client
from trainmaster.engines.yarn.client import YarnClient
from trainmaster.engines.yarn.settings import Keytab, Settings
from trainmaster.engines.yarn.submit import launching, lifetime, store
from trainmaster.engines.yarn.submit.store import Store
from trainmaster.hadoop.conf import Configuration, load
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security import delegation
from trainmaster.hadoop.security.credentials import RM_DELEGATION_TOKEN, Credentials, Token
from trainmaster.log.storage import Damaged

ID, OTHER = "digits-aaaaaa", "digits-bbbbbb"
SECURE = {"yarn.resourcemanager.hostname": "rm", "hadoop.security.authentication": "kerberos"}


def configured(folder: Path, **rows: str) -> Configuration:
    folder.mkdir(exist_ok=True)
    lines = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in rows.items())
    (folder / "core-site.xml").write_text(f"<configuration>{lines}</configuration>")
    return load(folder)


# -- the note of a job --


class Writer(io.RawIOBase):
    """A file of the stand-in; who writes closes it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, data: Any) -> int:
        self._path.write_bytes(bytes(data))
        return len(data)

    def hsync(self) -> None: ...

    def close(self) -> None: ...


class Hdfs:
    """A stand-in for HDFS, and for its client, in a folder of this machine: names are decided about as the NameNode does."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def call(self, act: Callable[[Any], Any]) -> Any:
        return act(self)

    def bounded(self, act: Callable[[], Any], limit: float = 0.0) -> Any:
        return act()

    def discard(self, *drafts: str) -> None:
        for draft in drafts:
            self.at(draft).unlink()

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def mkdirs(self, path: str, mode: int, with_parents: bool) -> None:
        self.at(path).mkdir(mode, parents=with_parents, exist_ok=True)

    def create(self, path: str, options: Any) -> Writer:
        self.at(path).touch(exist_ok=False)
        return Writer(self.at(path))

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        if self.at(target).exists() and not overwrite:
            raise FileExistsError(target)
        os.rename(self.at(source), self.at(target))

    def delete(self, path: str, recursive: bool) -> None:
        if recursive:
            shutil.rmtree(self.at(path))
        else:
            self.at(path).rmdir()


@pytest.fixture
def hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hdfs:
    found = Hdfs(tmp_path / "hdfs")
    monkeypatch.setattr(store, "open_dfs", lambda url: (found, ""))
    return found


@pytest.fixture
def conf(tmp_path: Path) -> Configuration:
    return configured(tmp_path / "conf", **{"fs.defaultFS": "hdfs://nn:8020"}, **SECURE)


def test_a_submission_whose_id_another_job_has_leaves_that_job_alone(hdfs: Hdfs, conf: Configuration) -> None:
    Store(conf, "alice").keep(ID, {"token": "of the first"})
    log = hdfs.at(f"/user/alice/.trainmaster/jobs/{ID}/events")
    log.write_text("of the first")
    second = Store(conf, "alice")
    with pytest.raises(EngineFailed, match=f"another job has the id {ID}"):
        second.keep(ID, {"token": "of the second"})
    second.forget(ID)
    assert log.read_text() == "of the first"
    assert (log.parent / "access").read_text() == '{"token": "of the first"}'
    assert sorted(path.name for path in log.parent.iterdir()) == ["access", "events"]


@pytest.mark.parametrize("damage", [b"", b'{"token": "of'])
def test_a_damaged_note_on_a_job_is_named_and_hides_no_other_job(
    hdfs: Hdfs, conf: Configuration, damage: bytes, monkeypatch: pytest.MonkeyPatch, home: Any
) -> None:
    known = Store(conf, "alice")
    for job in (ID, OTHER):
        known.keep(job, {"token": f"of {job}"})
    hdfs.at(f"/user/alice/.trainmaster/jobs/{ID}/access").write_bytes(damage)
    monkeypatch.setattr(store, "read_rest", lambda dfs, path, name, offset, largest: dfs.at(path).read_bytes())
    monkeypatch.setattr(adopting, "client_side", lambda engine: SimpleNamespace(store=lambda: known))
    noted: list[str] = []
    monkeypatch.setattr(adopting, "_note_job", lambda *told: noted.append(told[-1]["token"]))
    with pytest.raises(Damaged, match="access is damaged") as told:
        adopting.adopt_all("yarn", {ID: "application_1", OTHER: "application_2"})
    assert told.value.place == f"hdfs://nn:8020/user/alice/.trainmaster/jobs/{ID}/access"
    assert noted == [f"of {OTHER}"]


def test_a_submission_that_fails_removes_what_it_has_noted(hdfs: Hdfs, conf: Configuration) -> None:
    first = Store(conf, "alice")
    first.keep(ID, {})
    first.forget(ID)
    assert list(hdfs.at("/user/alice/.trainmaster/jobs").iterdir()) == []


def test_a_folder_without_a_note_is_removed(hdfs: Hdfs, conf: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(122, "the quota is spent")

    monkeypatch.setattr(store, "put", refuse)
    first = Store(conf, "alice")
    with pytest.raises(Exception, match="quota"):
        first.keep(ID, {})
    first.forget(ID)
    assert list(hdfs.at("/user/alice/.trainmaster/jobs").iterdir()) == []


def test_a_note_that_comes_after_its_submission_has_failed_is_removed(hdfs: Hdfs, conf: Configuration) -> None:
    late = Store(conf, "alice")
    late.stop.set()
    late.forget(ID)
    late.keep(ID, {})
    assert list(hdfs.at("/user/alice/.trainmaster/jobs").iterdir()) == []


# -- delegation tokens --


TOKENS = Credentials({"rm": Token(b"i", b"p", RM_DELEGATION_TOKEN, "rm:8032")})


@attrs.define
class ResourceManager:
    """Takes all that it is asked to run."""

    submitted: int = 0
    killed: int = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def get_new_application(self, _: object) -> y.GetNewApplicationResponseProto:
        return y.GetNewApplicationResponseProto(application_id=y.ApplicationIdProto(id=1, cluster_timestamp=1))

    async def submit_application(self, _: object) -> y.SubmitApplicationResponseProto:
        self.submitted += 1
        return y.SubmitApplicationResponseProto()

    async def force_kill_application(self, _: object) -> y.KillApplicationResponseProto:
        self.killed += 1
        return y.KillApplicationResponseProto(is_kill_completed=True)


def submit(
    conf: Configuration, monkeypatch: pytest.MonkeyPatch, keytab: Path, kept: Exception | None = None
) -> tuple[ResourceManager, list[Credentials]]:
    """Hand a job to a ResourceManager whose submission fails; return that, and the tokens that were given back."""
    manager, withdrawn = ResourceManager(), []

    async def fetch(*_: object, **__: object) -> Credentials:
        return TOKENS

    async def withdraw(conf: object, auth: object, tokens: Credentials) -> None:
        withdrawn.append(tokens)

    async def resources() -> dict[str, launching.Resource]:
        return {}

    async def note() -> None:
        if kept is not None:
            raise kept

    monkeypatch.setattr(yarn_client.ResourceManager, "of", lambda *_: manager)
    monkeypatch.setattr(delegation, "fetch", fetch)
    monkeypatch.setattr(delegation, "withdraw", withdraw)
    client = YarnClient({}, str(conf.folder))
    client.user = "alice"
    job, said = (
        job_from({"name": "t", "roles": {"worker": {"command": "true"}}}),
        Settings(kerberos=Keytab("alice@TEST", str(keytab))),
    )
    secret = {"token": "t", "key": "k", "secrets": {}, "stores": {}}

    async def run() -> None:
        noting, shipping = asyncio.create_task(note()), asyncio.create_task(resources())
        submission = Submission(ID, job, {}, secret, "", (), (), lambda without: keytab)
        await client._start_master(submission, said, noting, shipping, [])

    with pytest.raises((OSError, EngineFailed)):
        asyncio.run(run())
    return manager, withdrawn


def test_tokens_of_a_submission_that_fails_before_it_is_handed_over_are_cancelled(
    conf: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, withdrawn = submit(conf, monkeypatch, tmp_path / "no keytab")
    assert withdrawn == [TOKENS]
    assert manager.submitted == 0


def test_a_job_whose_id_another_has_is_not_handed_over(
    conf: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keytab").touch()
    manager, withdrawn = submit(conf, monkeypatch, tmp_path / "keytab", EngineFailed("another job has the id"))
    assert withdrawn == [TOKENS]
    assert manager.submitted == 0


def test_tokens_of_a_fetch_that_is_cancelled_are_cancelled(
    conf: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One issuer has answered, one answers only after the Ctrl-C, and one never does."""
    withdrawn: list[Credentials] = []
    tokens = [Token(name, b"p", RM_DELEGATION_TOKEN, "") for name in (b"first", b"second")]
    asked, interrupted = asyncio.Event(), asyncio.Event()

    async def of_yarn(*_: object) -> dict[str, Token]:
        return {"first": tokens[0]}

    async def of_hdfs(conf: object, auth: object, request: object, url: str) -> dict[str, Token]:
        if "late" not in url:
            await asyncio.Event().wait()
        asked.set()
        await interrupted.wait()
        return {"second": tokens[1]}

    async def withdraw(conf: object, auth: object, credentials: Credentials) -> None:
        withdrawn.append(credentials)

    for name, function in (("_of_yarn", of_yarn), ("_of_hdfs", of_hdfs), ("withdraw", withdraw), ("_WITHDRAWN", 0.05)):
        monkeypatch.setattr(delegation, name, function)

    async def run() -> None:
        urls = ["hdfs://late/", "hdfs://never/"]
        fetching = asyncio.create_task(delegation.fetch(conf, delegation.Kerberos(), urls=urls, renewed_by="alice"))
        await asked.wait()
        fetching.cancel()
        interrupted.set()
        with pytest.raises(asyncio.CancelledError):
            await fetching

    asyncio.run(run())
    assert withdrawn == [Credentials({"first": tokens[0], "second": tokens[1]})]


# -- keytabs, and who may see a job --


@pytest.mark.parametrize("protection", ["authentication", "integrity", "privacy,integrity"])
def test_a_keytab_is_refused_where_it_could_be_read_on_its_way(tmp_path: Path, protection: str) -> None:
    conf = configured(tmp_path, **{"hadoop.rpc.protection": protection}, **SECURE)
    said = Settings(kerberos=Keytab("alice@TEST", "/etc/alice.keytab"))
    job: Any = None  # its keytab alone is looked at
    with pytest.raises(
        BadInput, match=f"cross the network unencrypted: hadoop.rpc.protection is {protection} "
    ) as caught:
        asyncio.run(lifetime.check(conf, job, said, "alice"))
    assert caught.value.anchor == "rpc-protection"


def test_a_keytab_is_taken_where_all_is_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = configured(tmp_path, **{"hadoop.rpc.protection": "privacy"}, **SECURE)
    login = Keytab("alice@TEST", "/etc/alice.keytab")
    looked: list[object] = []
    monkeypatch.setattr(lifetime, "_check_keytab", lambda *what: looked.append(what))
    job: Any = None
    asyncio.run(lifetime.check(conf, job, Settings(kerberos=login), "alice"))
    assert looked == [(login, "alice")]


@pytest.mark.parametrize("view", ["", "bob,carol research"])
def test_who_may_see_a_job_is_reported_to_yarn(view: str) -> None:
    secret = {"token": "t"}
    made = launching.context("a.b:main", {}, secret, {}, view=view)
    shown = [(entry.accessType, entry.acl) for entry in made.application_ACLs]
    assert shown == ([(y.APPACCESS_VIEW_APP, view)] if view else [])
