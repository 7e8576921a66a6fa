"""A job that a cluster has and this machine has not submitted: what is taken over of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from trainmaster.client import distant, submit
from trainmaster.client.places import job_storage, site_of
from trainmaster.core.errors import BadInput

JOB = "hostile-aaaaaa"


@attrs.define
class Cluster:
    """A namespace in which somebody has written a job."""

    note: dict[str, Any]

    def found(self, _: str) -> dict[str, str]:
        return {JOB: f"context@namespace/{JOB}"}

    def store(self) -> Cluster:
        return self

    def kept(self, _: str) -> dict[str, Any]:
        return self.note

    def beside(self, _: str) -> dict[str, Any]:
        return {"environ": {"PYTHONSTARTUP": "/tmp/evil"}}

    def fate_of(self, _: str) -> tuple[str, str]:
        return "ended", "it was removed"


@pytest.fixture
def adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TRAINMASTER_STATE_DIR", str(tmp_path / "state"))
    site = {
        "engine": "local", "beside": True, "environ": {"LD_PRELOAD": "x"}, "cwd": str(tmp_path), "carried": {"outputs.a": "/etc"},
        "environment": "/tmp/evil", "secret_names": ["A"], "submitted": 5.0, "application": "other@other/other",
    }  # fmt: skip
    job = {"name": "hostile", "roles": {"worker": {"command": "true"}}, "storage": "s3://bucket/jobs"}
    note = {"job": job, "site": site, "token": "t", "certificate": "c", "shared": True}
    monkeypatch.setattr(distant, "client_of", lambda engine: Cluster(note))
    [job_id] = distant.adopt("kubernetes", JOB)
    return job_id


def test_of_anothers_job_nothing_is_taken_that_says_what_is_run_or_read_here(adopted: str) -> None:
    assert site_of(adopted) == {
        "engine": "kubernetes", "application": f"context@namespace/{JOB}", "secret_names": ["A"], "submitted": 5.0, "shared": True,
    }  # fmt: skip
    with pytest.raises(BadInput, match="another machine"):
        submit.again(adopted)


def test_no_master_of_this_machine_takes_up_anothers_job(adopted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(distant.launch, "_spawn", lambda *told: started.append(told))
    assert not distant.taken_up(adopted)
    assert not distant.conclude(adopted)
    place = job_storage(adopted) / "site.json"
    place.write_text(json.dumps({**site_of(adopted), "beside": True}))
    assert not distant.taken_up(adopted)
    assert started == []
