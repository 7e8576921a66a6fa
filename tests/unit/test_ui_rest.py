"""REST in `tm ui`: all jobs of a place, to whom it knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rest_server import JOB, Acts, Facts, Server, serving

from trainmaster.client.ui.rest import PlaceJobs, rest_of
from trainmaster.core.errors import BadInput, NotFound
from trainmaster.log.index import Headline
from trainmaster.web.contract import Reader

NAMES = (JOB, "text-bbbbbb", "text-cccccc")
NEWER = "text-dddddd"  # a job whose log is of a later version


class Board:
    """Three jobs: one runs, and the two others are over."""

    async def present(self) -> list[Headline]:
        states = ("running", "failed", "succeeded") if len(NAMES) == 3 else ("running", "running")
        return [Headline(name, name[:-7], state, user="ann") for name, state in zip(NAMES, states, strict=True)]


@pytest.fixture
def acts() -> Acts:
    return Acts()


@pytest.fixture
def server(acts: Acts) -> Iterator[Server]:
    async def open_facts(job: str) -> Facts:
        if job not in NAMES:
            raise NotFound(f"there is no job {job}")
        if job == NEWER:
            raise BadInput("this event log is of version 2.0")
        return Facts()

    app = rest_of(PlaceJobs(Board(), open_facts, lambda job: acts if job == JOB else None))  # type: ignore[arg-type]

    async def signed_in(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": {"reader": Reader("ann", may_act=True, csrf="form")}}, receive, send)

    with serving(signed_in) as server:
        yield server


def test_the_jobs_of_a_place_in_pages(server: Server) -> None:
    first = server.ask("/api/v1/jobs?limit=2").json
    assert ([job["id"] for job in first["jobs"]], first["next"], first["total"]) == (list(NAMES[:2]), "text-bbbbbb", 3)
    rest = server.ask(f"/api/v1/jobs?limit=2&after={first['next']}").json
    assert ([job["id"] for job in rest["jobs"]], rest["next"]) == (["text-cccccc"], None)
    assert [job["id"] for job in server.ask("/api/v1/jobs?search=text&state=failed").json["jobs"]] == ["text-bbbbbb"]
    assert [job["id"] for job in server.ask("/api/v1/jobs?state=live&user=ann").json["jobs"]] == [JOB]
    assert server.ask("/api/v1/jobs?after=none-aaaaaa").status == 404


def test_one_of_them(server: Server) -> None:
    assert server.ask(f"/api/v1/jobs/{NAMES[1]}").status == 200
    assert server.ask("/api/v1/jobs/none-aaaaaa").status == 404
    assert f'job="{JOB}"' in server.ask("/metrics").body.decode()


def test_a_job_that_cannot_be_read_hides_no_other(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.NAMES", (NEWER, JOB))
    assert server.ask(f"/api/v1/jobs/{NEWER}").status == 503
    answer = server.ask("/metrics")
    assert (answer.status, f'job="{JOB}"' in answer.body.decode()) == (200, True)


def test_a_change_needs_the_token_of_the_session(server: Server, acts: Acts) -> None:
    assert server.post("save", {}).status == 403
    assert server.post("save", {}, X_CSRF_Token="other").status == 403
    assert acts.done == []
    assert server.post("save", {"by": "bob"}, X_CSRF_Token="form").status == 200
    assert acts.done == [("save", "ann")]
    assert server.ask(f"/api/v1/jobs/{NAMES[1]}/actions/kill", "POST", {}, X_CSRF_Token="form").status == 403
