"""The promises about a container that its cluster may not keep: what the container itself sees of them, and what is done then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.agent.attempt.attempt import Attempt
from trainmaster.agent.attempt.failure import AttemptFailed
from trainmaster.client.submit.checks import check
from trainmaster.core.errors import BadInput
from trainmaster.core.machine.reasons import REASONS, advice, words
from trainmaster.core.machine.state import PROMISE, loss_kind
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.kubernetes.container import bootstrap
from trainmaster.engines.packed import packed
from trainmaster.engines.promises import broken_gpus
from trainmaster.engines.registry import BUILT_IN, engine
from trainmaster.engines.yarn.container.promises import broken, mount_points
from trainmaster.words.text import loss_lines

DOCKER = "YARN_CONTAINER_RUNTIME_DOCKER_"
FOLDERS = {"LOCAL_DIRS": "/local/app_1,/more/app_1", "LOG_DIRS": "/logs/c_1", "PWD": "/local/app_1/c_1"}


def test_a_container_without_its_own_mounts_is_in_no_image() -> None:
    """YARN without the docker runtime ignores the variables, and starts the command on the host."""
    asked = {**FOLDERS, f"{DOCKER}IMAGE": "x:1"}
    assert list(broken(FOLDERS, {"/"}, "n1")) == []
    assert [name for name, _ in broken(asked, {"/", "/local"}, "n1")] == ["image"]
    for mounted in ("/more/app_1", "/logs/c_1", "/local/app_1/c_1"):
        assert list(broken(asked, {"/", mounted}, "n1")) == []


def test_a_mount_of_an_image_is_where_it_was_asked_for(tmp_path: Path) -> None:
    asked = {**FOLDERS, f"{DOCKER}IMAGE": "x:1", f"{DOCKER}MOUNTS": "/etc/passwd:/etc/passwd:ro,/data:/in"}
    whole = {"/", "/logs/c_1", "/etc/passwd", "/in"}
    assert list(broken(asked, whole, "n1")) == []
    assert list(broken(asked, None, "n1")) == [], "a system that does not say it breaks no promise"
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert list(broken({**asked, f"{DOCKER}MOUNTS": f"/run:{link}"}, {*whole, str(tmp_path)}, "n1")) == []
    assert list(broken(asked, whole - {"/in"}, "n1")) == [
        ("mounts", "/data:/in was asked for, and nothing is mounted at /in")
    ]


def test_the_places_of_real_mounts_are_seen(tmp_path: Path) -> None:
    folder = tmp_path / "a container"
    folder.mkdir()
    look = f"from trainmaster.engines.yarn.container.promises import mount_points; print({str(folder)!r} in mount_points())"
    mounting = f'mount --bind "{folder}" "{folder}" && exec "{sys.executable}" -c "$1"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mounting, "sh", look], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "True", done.stderr
    assert str(folder) not in (mount_points() or ())


def test_gpus_that_nobody_sees_are_told() -> None:
    assert broken_gpus(2, ("0", "1"), "n1") == broken_gpus(0, (), "n1") == []
    assert broken_gpus(2, (), "n1") == [("gpus", "2 were granted on n1, and none of NVIDIA's can be seen there")]


def test_a_pod_looks_for_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bootstrap, "HANDED", str(tmp_path))
    monkeypatch.setattr("trainmaster.host.devices.found", lambda: (("0",), frozenset()))
    for name, text in {**packed({"gpus": 2}), "TRAINMASTER_NODE": "n1", "TRAINMASTER_POD": "p1"}.items():
        monkeypatch.setenv(name, text)
    (tmp_path / bootstrap.AGENT_SECRET).write_text('{"stores": {}}')
    assert bootstrap.agent()["broken"] == [("gpus", "2 were granted on n1, and 1 of NVIDIA's can be seen there")]


class _Place:
    def __init__(self, broken: list[tuple[str, str]]) -> None:
        self.broken = tuple(broken)


def attempt(broken: list[tuple[str, str]], reports: list[tuple[str, dict[str, str]]]) -> Attempt:
    """An attempt of which only the promises matter."""
    made = Attempt.__new__(Attempt)
    made.place = _Place(broken)  # type: ignore[assignment]
    made._report = lambda kind, **fields: reports.append((kind, fields))  # type: ignore[method-assign]
    return made


def test_a_promise_that_programs_rely_on_ends_the_attempt_and_no_other_does() -> None:
    reports: list[tuple[str, dict[str, str]]] = []
    warned = attempt([("gpus", "2 were granted")], reports)
    warned._check_promises()
    warned._check_promises()
    assert [(kind, fields["what"]) for kind, fields in reports] == [("warned", "promise gpus")], "once"
    with pytest.raises(AttemptFailed) as failure:
        attempt([("image", "the image x:1 was asked for")], reports)._check_promises()
    reason, figures = failure.value.reason, failure.value.figures
    assert (reason, REASONS[reason].lasting) == ("promise-broken", True)
    assert words(reason, figures) == "its container is not what the job asks for: the image x:1 was asked for"
    assert "leave the image out" in advice(reason, figures)


def test_a_broken_promise_is_shown_with_the_job() -> None:
    assert loss_kind("promise gpus") == PROMISE
    rows = [
        {"kind": PROMISE, "of": "promise gpus", "detail": "2 were granted", "task": f"worker:{index}"}
        for index in range(2)
    ]
    assert loss_lines({"job": "j", "losses": rows}) == ["  not kept: gpus of worker:0, worker:1: 2 were granted"]


def test_an_engine_that_runs_no_images_refuses_them(home: object) -> None:
    from trainmaster.client.jobs.backends import backend

    assert [name for name in BUILT_IN if not engine(name).capabilities.images] == ["local", "spark"]
    job = job_from({"roles": {"worker": {"command": "true", "image": "x:1"}}})
    with pytest.raises(BadInput, match="the engine local runs no images") as refusal:
        check(job, backend("local"), job)
    assert refusal.value.place == "roles.worker.image: x:1"
