"""The description of a job and its course, of real jobs on this machine and of plain data."""

from __future__ import annotations

import getpass
import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.client.jobs.past import Past
from trainmaster.core.spec.description import description
from trainmaster.engines.yarn.client import YarnClient

TM = [sys.executable, "-m", "trainmaster.cli"]
PROGRAM = '[ "$TRAINMASTER_ATTEMPT" = 2 ] || exit 3'


def test_a_real_job_is_described_with_the_sources_of_its_values(tmp_path: Path, home, monkeypatch) -> None:
    (tmp_path / "job.yaml").write_text(
        f"name: digits\nroles:\n  worker:\n    command: {json.dumps(PROGRAM)}\n    env: {{DB_PASSWORD: hunter2hunter2}}\n"
    )
    monkeypatch.setenv("TRAINMASTER_SET_TIMEOUTS__STALL", "11m")
    words = ["run", "job.yaml", "--set", "roles.worker.replicas=2", "--json"]
    done = subprocess.run([*TM, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (job,) = (entry.name for entry in (home.state / "jobs").iterdir())

    facts = Past(job).description()
    assert facts["sources"] == {
        "name": "job.yaml line 1",
        "roles.worker.command": "job.yaml line 4",
        "roles.worker.env.DB_PASSWORD": "job.yaml line 5",
        "roles.worker.replicas.min": "flag --set",
        "roles.worker.replicas.max": "flag --set",
        "timeouts.stall": "variable TRAINMASTER_SET_TIMEOUTS__STALL",
    }
    assert facts["job"]["roles"]["worker"]["env"] == {"DB_PASSWORD": None}  # kept in no file
    assert "hunter2" not in json.dumps(facts)
    assert (facts["engine"], facts["user"]) == ("local", getpass.getuser())
    assert (facts["application"], facts["link"]) == ("", "")
    assert facts["place"] == str(home.state / "jobs" / job)

    timeline = Past(job).timeline()
    assert {key: attempt.state for key, attempt in timeline.attempts.items()} == {
        (f"worker:{index}", number): state for index in range(2) for number, state in ((1, "failed"), (2, "succeeded"))
    }
    first = timeline.attempts["worker:0", 1]
    assert first.words == "exited with status 3"
    assert first.began <= first.staging <= first.ready <= first.started <= first.ended  # type: ignore[operator]
    assert timeline.counts["restart"] == 2
    assert [mark.text for mark in timeline.marks][-1] == "the job ended: succeeded"

    monkeypatch.setenv("DB_PASSWORD", "hunter2hunter2")
    again = subprocess.run([*TM, "retry", job], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0, again.stderr
    (retried,) = (entry.name for entry in (home.state / "jobs").iterdir() if entry.name != job)
    assert Past(retried).description()["sources"] == facts["sources"]


def test_secrets_of_variables_and_urls_are_redacted_wherever_they_stand() -> None:
    job = {
        "roles": {"worker": {"command": "run --key abcdefghij", "env": {"API_KEY": "abcdefghij", "DEPTH": "3"}}},
        "inputs": {"train": {"url": "https://anna:geheim1234@host/x"}},
    }
    facts = description(job, {}, "s3://key:geheim1234@bucket/jobs/x")
    assert facts["job"]["roles"]["worker"]["env"] == {"API_KEY": "[redacted]", "DEPTH": "3"}
    assert facts["job"]["roles"]["worker"]["command"] == "run --key [redacted]"
    assert "geheim" not in json.dumps(facts)


@pytest.mark.parametrize("site", [{}, {"sources": []}, {"sources": {"name": 1}, "user": None}, {"sources": {"": "x"}}])
@pytest.mark.parametrize("job", [{}, {"roles": []}, {"roles": {"worker": 1}}, {"roles": {"worker": {"env": [1]}}}])
def test_a_job_or_site_of_another_shape_is_described_all_the_same(job, site) -> None:
    facts = description(job, site, "/x")
    assert facts["job"] == job
    assert facts["user"] == ""


def test_a_link_that_is_no_address_of_a_page_is_left_out() -> None:
    assert description({}, {"link": "javascript:alert(1)"}, "/x")["link"] == ""
    assert description({}, {"link": "https://rm/app"}, "/x")["link"] == "https://rm/app"


def test_a_section_written_as_a_whole_is_the_source_of_its_values() -> None:
    job = {"roles": {"worker": {"resources": {"cores": 2, "memory": "1GiB"}, "env": {}}}}
    site = {"sources": {"roles.worker.resources": "job.yaml line 9"}}
    assert description(job, site, "/x")["sources"] == {
        "roles.worker.resources.cores": "job.yaml line 9",
        "roles.worker.resources.memory": "job.yaml line 9",
    }


RM = "yarn.resourcemanager."


@pytest.mark.parametrize(
    ("rows", "link"),
    [
        ({f"{RM}hostname": "rm"}, "http://rm:8088/cluster/app/application_1_0001"),
        ({f"{RM}hostname": "rm", f"{RM}webapp.address": "ui:80"}, "http://ui:80/cluster/app/application_1_0001"),
        ({f"{RM}hostname": "rm", f"{RM}webapp.address": "0.0.0.0:80"}, "http://rm:80/cluster/app/application_1_0001"),
        ({f"{RM}hostname": "rm", "yarn.http.policy": "HTTPS_ONLY"}, "https://rm:8090/cluster/app/application_1_0001"),
        (
            {f"{RM}ha.enabled": "true", f"{RM}ha.rm-ids": "a,b", f"{RM}hostname.a": "one", f"{RM}hostname.b": "two"},
            "http://one:8088/cluster/app/application_1_0001",
        ),
    ],
)
def test_yarns_own_page_of_a_job(tmp_path: Path, rows: dict[str, str], link: str) -> None:
    lines = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in rows.items())
    (tmp_path / "yarn-site.xml").write_text(f"<configuration>{lines}</configuration>")
    assert YarnClient({}, str(tmp_path)).link("application_1_0001") == link
