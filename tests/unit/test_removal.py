"""Finding, removing and pruning jobs: what is over goes wholly, what runs stays, and caches that a job needs stay too."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import until

import trainmaster
from trainmaster.client.jobs import listing, removal
from trainmaster.client.jobs.listing import matches
from trainmaster.client.jobs.sweep import is_abandoned
from trainmaster.log.index import Headline

HOLD = 'echo "here $TRAINMASTER_INDEX"; while [ ! -e go ]; do sleep 0.02; done; echo over'


PROPERTY = "<configuration><property><name>{}</name><value>{}</value></property></configuration>"
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{}"}}}}]
users: [{{name: u, user: {{}}}}]
"""


def tm(*arguments: str, cwd: Path | None = None, **places: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "trainmaster.cli", *arguments]
    environment = {**os.environ, "NO_COLOR": "1", **places}
    return subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def shell(text: str) -> list[str]:
    return ["--", "sh", "-c", text]


@pytest.fixture
def over(tmp_path: Path, home) -> str:
    """A job that has ended, with a storage and an output elsewhere."""
    command = "mkdir -p model; echo new > model/x"
    line = ["--name", "over", "--storage", f"file://{tmp_path}/far", "--output", "model=out", "--idempotency-key", "k"]
    done = tm("submit", *line, *shell(command), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    assert tm("wait", job).returncode == 0
    until(lambda: is_abandoned(job))
    return job


def test_a_job_that_is_over_goes_wholly(tmp_path: Path, home, over: str) -> None:
    assert (tmp_path / "far" / over).is_dir()
    shown = tm("remove", over, "--dry-run")
    assert (shown.returncode, f"file://{tmp_path}/far/{over}" in shown.stdout) == (0, True), shown.stderr
    assert (tmp_path / "far" / over).is_dir()
    assert tm("remove", over, "nothing").returncode == 2, "the other name is wrong"
    assert os.listdir(tmp_path / "far") == []
    assert os.listdir(home.state / "jobs") == []
    assert os.listdir(home.state / "keys") == []
    assert (tmp_path / "out/worker-0/x").read_text() == "new\n"
    assert "no jobs" in tm("list").stdout


def test_a_job_that_runs_is_never_removed(tmp_path: Path, home) -> None:
    job = tm("submit", *shell(HOLD), cwd=tmp_path).stdout.strip()
    try:
        until(lambda: "here" in tm("logs", job).stdout)
        refused = tm("remove", job)
        assert (refused.returncode, refused.stderr.splitlines()[0]) == (
            2, f"error: {job} is not over, so it is not removed  [job-not-over]",
        )  # fmt: skip
        assert "running" in refused.stderr
        pruned = tm("prune", "--older", "0s", "--yes")
        assert pruned.returncode == 0, pruned.stderr
        assert (home.state / "jobs" / job).is_dir()
    finally:
        (tmp_path / "go").touch()
        tm("wait", job)


def test_a_job_whose_cluster_is_gone_is_forgotten_on_this_machine(
    home, over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    assert tm("remove", "--here", over).returncode == 2, "it is of this machine"
    site = home.state / "jobs" / over / "site.json"
    site.write_text(json.dumps({**json.loads(site.read_text()), "engine": "yarn", "application": "application_1_0001"}))
    refused = tm("remove", over)
    assert refused.returncode in (2, 3), refused.stdout
    assert site.exists()
    assert tm("remove", "--here", over).returncode == 0
    assert os.listdir(home.state / "jobs") == []


def test_a_job_whose_storage_is_gone_is_forgotten_on_this_machine(home, over: str) -> None:
    job = home.state / "jobs" / over / "job.json"
    job.write_text(json.dumps({**json.loads(job.read_text()), "storage": "hdfs:///nowhere"}))
    assert tm("remove", over).returncode in (2, 3)
    assert tm("remove", "--here", over).returncode == 0
    assert os.listdir(home.state / "jobs") == []


def test_old_jobs_and_caches_are_pruned_once_that_is_said(tmp_path: Path, home, over: str) -> None:
    archive = home.state / "files" / "abc.tar.gz"
    archive.parent.mkdir(exist_ok=True)
    archive.write_text("x" * 10)
    os.utime(archive, (1e9, 1e9))
    assert "nothing is that old" in tm("prune", "--older", "36500d").stderr
    refused = tm("prune", "--older", "0s")
    assert (refused.returncode, over in refused.stdout) == (2, True)
    assert "add --yes" in refused.stderr
    shown = json.loads(tm("prune", "--older", "30d", "--dry-run", "--json").stdout)
    assert shown["jobs"] == []
    assert [(entry["place"], entry["size"]) for entry in shown["caches"]] == [(str(archive), 10)]
    assert archive.exists()
    done = tm("prune", "--older", "0s", "--yes")
    assert done.returncode == 0, done.stderr
    assert "removed: 1 of 1 jobs" in done.stderr
    assert not archive.exists()
    assert os.listdir(home.state / "jobs") == []


def test_what_a_job_that_goes_on_may_use_stays_in_the_caches(home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of long ago still runs: what was last used after its submission may be its own."""
    now = time.time()
    for name, age in (("before", 90), ("since", 50)):
        entry = home.state / "environments" / name
        entry.mkdir(parents=True)
        (entry / "python").write_text("12345")
        os.utime(entry, (now - age * 86400, now - age * 86400))
    old = Headline("old-aaaaaa", submitted=now - 60 * 86400)
    monkeypatch.setattr(removal, "headlines", lambda: [old])
    assert [Path(entry.place).name for entry in removal.unused_since(now - 30 * 86400)] == ["before"]
    (entry,) = removal.unused_since(now - 30 * 86400)
    assert entry.size == 5
    os.utime(entry.place)  # a submission takes it meanwhile
    assert not removal.clear(entry)
    assert Path(entry.place).is_dir()
    monkeypatch.setattr(removal, "headlines", list)
    assert [Path(entry.place).name for entry in removal.unused_since(now - 30 * 86400)] == ["since"]


@pytest.mark.parametrize(
    ("states", "name", "after", "matched"),
    [
        ((), None, 0.0, "abc"),
        (("failed",), None, 0.0, "b"),
        (("failed", "unreadable"), None, 0.0, "bc"),
        (("running",), None, 0.0, ""),
        ((), "digits*", 0.0, "ab"),
        ((), "x-c", 0.0, "c"),
        ((), None, 150.0, "bc"),
    ],
)
def test_jobs_are_found_by_state_name_and_time(states: tuple[str, ...], name: str, after: float, matched: str) -> None:
    rows = [
        Headline("x-a", "digits", "succeeded", submitted=100.0, ended=101.0),
        Headline("x-b", "digits-2", "failed", submitted=200.0, ended=201.0),
        Headline("x-c", "other", "running", submitted=300.0, unreadable="nobody answers"),
    ]
    assert "".join(row.id[-1] for row in rows if matches(row, states, name, after)) == matched


def test_the_list_takes_the_same_words(over: str) -> None:
    assert over in tm("list", "--state", "succeeded", "--name", "ov*", "--since", "2d").stdout
    assert [(row["id"], row["engine"]) for row in json.loads(tm("list", "--json").stdout)] == [(over, "local")]
    assert "no jobs are like that" in tm("list", "--state", "failed").stdout
    assert "no jobs are like that" in tm("list", "--name", "nothing*").stdout
    assert tm("list", "--state", "faild").returncode == 2
    assert "a duration needs a unit" in tm("list", "--since", "2").stderr
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z  ", tm("events", over, "--utc").stdout)


def test_a_cluster_that_cannot_be_asked_hides_no_job(monkeypatch: pytest.MonkeyPatch, home) -> None:
    def found(wanted: str) -> dict[str, str]:
        raise trainmaster.EngineFailed("yarn does not answer")

    monkeypatch.setattr(listing, "clusters", lambda engine: ["yarn"])
    monkeypatch.setattr(listing, "client_side", lambda engine: SimpleNamespace(find_jobs=found))
    with pytest.warns(trainmaster.JobWarning, match="yarn does not answer"):
        assert trainmaster.jobs() == []
    with pytest.raises(trainmaster.EngineFailed):
        trainmaster.jobs("yarn")


def test_clusters_that_do_not_answer_are_not_waited_for(tmp_path: Path, home) -> None:
    """All are asked at once. A server that is stopped takes connections, and its client may try for half a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (tmp_path / "core-site.xml").write_text(PROPERTY.format("fs.defaultFS", f"hdfs://127.0.0.1:{port}"))
        (tmp_path / "yarn-site.xml").write_text(PROPERTY.format("yarn.resourcemanager.address", f"127.0.0.1:{port}"))
        (tmp_path / "config").write_text(KUBECONFIG.format(port))
        places = {"HADOOP_CONF_DIR": str(tmp_path), "KUBECONFIG": str(tmp_path / "config")}
        begun = time.monotonic()
        done = tm("prune", "--older", "1d", "--dry-run", **places)
        took = time.monotonic() - begun
    for engine in ("yarn", "kubernetes"):
        assert f"nothing is cleared on {engine}: the cluster of {engine} has not answered within 3 s" in done.stderr
    assert took < 20, done.stderr
