"""Which actions the page of a job offers."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.web.pages.actions import buttons

JOB = {
    "name": "digits",
    "roles": {
        "worker": {"command": "true", "replicas": {"min": 2, "max": 4}},
        "ps": {"command": "true", "replicas": 2},
    },
}


@pytest.mark.parametrize(
    ("state", "outputs", "labels"),
    [
        ("running", [{"name": "model"}], ["Save", "Scale worker", "Kill"]),
        ("pending", [], ["Scale worker", "Kill"]),
        ("failed", [{"name": "model"}], ["Retry"]),
    ],
)
def test_what_makes_sense_is_offered(state: str, outputs: list[Any], labels: list[str]) -> None:
    offered = buttons({"state": state, "outputs": outputs}, job_to(job_from(JOB)))
    assert [label for label, _, _ in offered] == labels
    assert ("Scale worker", "scale?role=worker", False) in offered or state == "failed"
