"""Pieces of files in Secrets: a piece that is there is shared without being sent, and what is not there is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unit.test_kube_client import Answer, answer, failure, run, served

from trainmaster.core.errors import EngineFailed
from trainmaster.engines.contract import Shipped
from trainmaster.engines.kubernetes.submit import shipping

OWNER = {"apiVersion": "v1", "kind": "Secret", "name": "job", "uid": "u"}
THERE = answer(200, {"metadata": {"name": "x"}})
MADE = answer(201, {"metadata": {"name": "x"}})
GOING = answer(200, {"metadata": {"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"}})
ABSENT = failure(404, "NotFound")
TAKEN = failure(409, "AlreadyExists")
FORBIDDEN = failure(403, "Forbidden", "you may not patch secrets")


def sent(folder: Path, *script: Answer) -> list[tuple[str, int]]:
    """Put a file of one piece, and return the requests: verb, and bytes."""
    path = folder / "file"
    path.write_bytes(b"x" * 500_000)
    requests: list[tuple[str, int]] = []

    async def act() -> None:
        async with served(*script) as (server, client):
            try:
                await shipping.put(client, OWNER, shipping.read([Shipped("file", path)]))
            finally:
                requests.extend((request.line.split()[0], len(request.body)) for request in server.asked)
                for request in server.asked:
                    assert json.loads(request.body)["metadata"]["ownerReferences"] == [OWNER]

    run(act)
    return requests


def test_a_piece_that_another_job_has_is_not_sent_again(tmp_path: Path) -> None:
    [(verb, size)] = sent(tmp_path, THERE)
    assert verb == "PATCH"
    assert size < 500


def test_a_piece_that_is_not_there_is_made(tmp_path: Path) -> None:
    assert [verb for verb, _ in sent(tmp_path, ABSENT, MADE)] == ["PATCH", "POST"]


def test_a_piece_that_is_being_removed_is_made_once_it_is_gone(tmp_path: Path) -> None:
    assert [verb for verb, _ in sent(tmp_path, GOING, TAKEN, ABSENT, MADE)] == ["PATCH", "POST"] * 2


def test_who_may_make_secrets_alone_makes_those_that_are_not_there(tmp_path: Path) -> None:
    assert [verb for verb, _ in sent(tmp_path, FORBIDDEN, MADE)] == ["PATCH", "POST"]
    with pytest.raises(ExceptionGroup) as caught:
        sent(tmp_path, FORBIDDEN, TAKEN)
    [error] = caught.value.exceptions
    assert isinstance(error, EngineFailed)
    assert "cannot be shared: you may not patch secrets" in str(error)
