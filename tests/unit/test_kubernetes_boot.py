"""What puts a pod together: archives of every kind are unpacked alike; secrets reach the agent of their role, and no program."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from trainmaster.core.spec.reading import job_from
from trainmaster.engines.kubernetes.container import bootstrap as inside_pod
from trainmaster.engines.kubernetes.container.boot import unpack, unzipped
from trainmaster.engines.kubernetes.container.entry import (
    AGENT_SECRET,
    BOOT,
    HANDOVER,
    HOME,
    MANIFEST,
    PIECES,
    PUBLISHED,
    ROOT,
    SCRIPT,
    SECRET,
    Piece,
    agent_key,
    boot,
    digest_of,
    inside,
)
from trainmaster.engines.kubernetes.pods.pods import Shape, master_pod
from trainmaster.engines.kubernetes.settings import settings
from trainmaster.engines.packed import packed, stores_of
from trainmaster.engines.statuses import NO_PYTHON
from trainmaster.kube.config import ACCOUNT


def tar(mode: str, *, link: bool = False) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=f"w{mode}") as archive:  # type: ignore[call-overload]
        for name, content, bits in (
            ("run", b"#!/bin/sh\n", 0o775),
            ("lib/deep/a.py", b"x" * 100_000, 0o644),
            ("empty", b"", 0o600),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), bits, 1_700_000_000
            archive.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo("again")
            member.type, member.linkname = tarfile.SYMTYPE, "run"
            archive.addfile(member)
    return made.getvalue()


@pytest.mark.parametrize("mode", ["", ":gz", ":xz"])
@pytest.mark.parametrize("link", [False, True])
def test_a_tar_is_unpacked(tmp_path: Path, mode: str, link: bool) -> None:
    unpack(tar(mode, link=link), str(tmp_path / "there"))
    found = {
        str(path.relative_to(tmp_path / "there")): path for path in (tmp_path / "there").rglob("*") if path.is_file()
    }
    assert sorted(found) == sorted(["run", "lib/deep/a.py", "empty", *(["again"] if link else [])])
    assert found["lib/deep/a.py"].read_bytes() == b"x" * 100_000
    assert {name: found[name].stat().st_mode & 0o777 for name in ("run", "empty")} == {"run": 0o755, "empty": 0o600}
    assert found["run"].stat().st_mtime == 1_700_000_000
    assert not link or os.readlink(found["again"]) == "run"


@pytest.mark.parametrize("parts", [[b""], [b"one" * 100_000], [b"one", b"two" * 1000], [b"x" * 70_000, b""]])
def test_gzip_of_one_member_or_several_is_decompressed(parts: list[bytes]) -> None:
    assert unzipped(b"".join(map(gzip.compress, parts))) == b"".join(parts)


def test_a_zip_is_unpacked(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a/b", "c")
    unpack(made.getvalue(), str(tmp_path / "there"))
    assert (tmp_path / "there/a/b").read_text() == "c"


def test_what_would_leave_the_folder_does_not(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../out"))
    if hasattr(tarfile, "tar_filter"):
        with pytest.raises(tarfile.OutsideDestinationError):
            unpack(made.getvalue(), str(tmp_path / "there"))
        assert not (tmp_path / "out").exists()


# -- secrets --

PIECE = Piece("files.tar.gz", hashlib.sha256(b"content").hexdigest()[:32], ("piece-0",))


def filled(tmp_path: Path) -> tuple[list[str], Path]:
    """The command of an agent's init container as it runs below a folder of the test's, and that folder, with what is mounted there."""
    root = tmp_path / "pod"
    for place in (BOOT, HANDOVER, HOME, PIECES, SECRET):
        (root / place.removeprefix(ROOT).strip("/")).mkdir(parents=True)
    files = boot([PIECE])
    for name, text in files.items():
        (root / "boot" / name).write_text(text)
    (root / "pieces" / "piece-0").write_bytes(b"content")
    (root / "secret" / "agent.json").write_text("{}")
    [init] = inside("job", "worker", [PIECE], digest_of(files), {}).init
    return [word.replace(ROOT, str(root)) for word in init["command"]], root


def test_an_init_container_brings_the_files_and_hands_the_secrets_over(tmp_path: Path) -> None:
    command, root = filled(tmp_path)
    subprocess.run(command, check=True)
    assert (root / "home" / "files.tar.gz").read_bytes() == b"content"
    assert (root / "handover" / "agent" / "agent.json").read_text() == "{}"
    assert (root / "handover" / "agent" / "agent.json").stat().st_mode & 0o777 == 0o600


def test_the_user_of_an_image_with_the_runtime_leaves_secrets_that_another_user_can_delete(tmp_path: Path) -> None:
    """The volume's own folder is sticky: an agent as the user of the job's image could not delete them there."""
    _, root = filled(tmp_path)
    (tmp_path / "published").mkdir()
    init = inside("job", "worker", [], "", {}, "runtime:1").init[0]
    places = {
        PUBLISHED: f"{tmp_path}/published",
        HOME: f"{root}/home",
        SECRET: f"{root}/secret",
        HANDOVER: f"{root}/handover",
    }
    command = init["command"]
    for place, there in places.items():
        command = [word.replace(place, there) for word in command]
    subprocess.run(command, check=True, umask=0o022)
    assert (root / "handover" / "agent" / "agent.json").read_text() == "{}"
    assert (root / "handover" / "agent").stat().st_mode & 0o7777 == 0o777


@pytest.mark.parametrize("name", [SCRIPT, MANIFEST])
def test_an_init_container_runs_nothing_that_was_changed_since_the_submission(tmp_path: Path, name: str) -> None:
    command, root = filled(tmp_path)
    with (root / "boot" / name).open("a") as file:
        file.write("\n")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "was changed since the submission" in done.stderr
    assert not list((root / "home").iterdir())


@pytest.mark.parametrize("status", [NO_PYTHON, 2, 127], ids=["too-old", "far-too-old", "of-pyenv"])
def test_a_python_that_cannot_be_used_is_passed_over(tmp_path: Path, status: int) -> None:
    command, root = filled(tmp_path)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").write_text(f"#!/bin/sh\nexit {status}\n")
    (folder / "python3").chmod(0o755)
    path = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(
        ["/bin/sh", *command[1:]], check=False, env={"PATH": f"{folder}"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (NO_PYTHON, "the image has no Python >= 3.11\n")
    (folder / "python3.12").symlink_to(sys.executable)
    subprocess.run(command, check=True, env=path)
    assert (root / "home" / "files.tar.gz").read_bytes() == b"content"


@pytest.mark.parametrize("image", ["", "runtime:1"])
def test_a_program_has_the_secrets_mounted_of_no_role(image: str) -> None:
    agent = inside("job", "worker", [PIECE], "digest", {}, image)
    [volume] = [one for one in agent.volumes if "secret" in one]
    assert volume["secret"]["items"] == [{"key": agent_key("worker"), "path": "agent.json"}]
    assert agent_key("worker") != agent_key("ps")
    assert {one["mountPath"] for one in agent.mounts} == {HOME, HANDOVER}
    assert [SECRET in {one["mountPath"] for one in init["volumeMounts"]} for init in agent.init].count(True) == 1
    master = inside("job", "", [PIECE], "digest", {}, image)
    assert SECRET in {one["mountPath"] for one in master.mounts}
    assert not any(one["mountPath"] in (SECRET, HANDOVER) for init in master.init for one in init["volumeMounts"])


def test_an_agent_reads_the_secrets_that_were_handed_over_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of its user could read it else."""
    monkeypatch.setattr(inside_pod, "HANDED", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / AGENT_SECRET).write_text(json.dumps({"token": "t", "secrets": {}, "stores": {}}))
    variables = {"TRAINMASTER_NODE": "node-1", "TRAINMASTER_POD": "pod-1", **packed({"task": "worker:0"})}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    spec = inside_pod.agent()
    assert (spec["token"], spec["task"]) == ("t", "worker:0")
    assert not (tmp_path / AGENT_SECRET).exists()


def test_no_container_but_the_masters_own_has_its_account() -> None:
    """A sidecar that a template puts into its pod on purpose gets no token by which pods are made."""
    sidecar = {
        "spec": {
            "containers": [{"name": "proxy", "image": "proxy:1"}],
            "initContainers": [{"name": "first", "image": "first:1"}],
        }
    }
    data = {
        "name": "t", "environment": {"image": "image:1"}, "roles": {"worker": {"command": "true"}},
        "engines": {"kubernetes": {"roles": {"master": {"pod": sidecar}}}},
    }  # fmt: skip
    job = job_from(data)
    shape = Shape("t-abc123", job, settings(job.engines["kubernetes"]))
    spec = master_pod(shape, inside("t-abc123", "", [PIECE], "digest", {}), "t-abc123")["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("t-abc123", False)
    containers = [*spec["initContainers"], *spec["containers"]]
    assert {container["name"] for container in containers} == {"program", "runtime", "proxy", "first"}
    mounted = [
        container["name"] for container in containers
        for mount in container.get("volumeMounts", ()) if mount["mountPath"] == ACCOUNT
    ]  # fmt: skip
    assert mounted == ["program"]


def test_a_container_gets_what_opens_the_stores_of_its_own_role_alone() -> None:
    stores = {"AWS_SECRET_ACCESS_KEY": "a", "GOOGLE_TOKEN": "g", "AZURE_KEY": "z"}
    data = {
        "name": "t", "roles": {"worker": {"command": "a"}, "evaluator": {"command": "b", "counts": False}},
        "inputs": {"train": {"url": "s3://bucket/train"}, "test": {"url": "gs://bucket/test", "to": "evaluator"}},
    }  # fmt: skip
    job = job_from(data)
    assert set(stores_of(stores, job, "worker")) == {"AWS_SECRET_ACCESS_KEY"}
    assert set(stores_of(stores, job, "evaluator")) == {"GOOGLE_TOKEN"}
    stored = job_from({**data, "storage": "abfss://here/jobs"})
    assert set(stores_of(stores, stored, "worker")) == {"AWS_SECRET_ACCESS_KEY", "AZURE_KEY"}
    table = {"url": "postgresql+psycopg://me@host/db?table=t", "as": "shards"}
    reading = job_from({**data, "inputs": {"train": table}})
    assert stores_of({**stores, "PGPASSWORD": "p"}, reading, "worker") == {"PGPASSWORD": "p"}
