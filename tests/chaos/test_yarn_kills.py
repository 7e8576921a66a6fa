"""kill -9 of a job's master at random moments, on a real cluster: YARN starts another, and neither programs nor their user notice.

The moments are drawn from the seed; many fall into the beginning of a master, for each lives a few seconds alone. Nothing is lost: each
record is counted exactly once and is in the output exactly as often as it was given out, no program began twice, and nothing is left.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos.test_kills import pause
from conformance.engines import Submitted, Yarn, in_containers, python, workers
from hadoop import own_hadoop
from waiting import until

from trainmaster.clusters.hadoop import Cluster, Settings

pytestmark = pytest.mark.xdist_group("hadoop")

FILES, LINES, EPOCHS = 20, 10, 3
MOST = 4.0  # s between the beginning of a master and its end
LIMIT = 240.0  # s for a master to be followed, and for a job to end; reached by a failure alone
WRITE = python("""
    import os, time
    from trainmaster import runtime
    os.makedirs("seen")
    with open("seen/records", "a") as file:
        for shard in runtime.shards("train", batch=1).shards():
            for record in shard.records():
                file.write(str(record).strip() + "\\n")
                file.flush()
                time.sleep(0.04)
""")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_hadoop(Settings(nodes=2, properties={"yarn.resourcemanager.am.max-attempts": "1000"})) as started:
        yield started


@pytest.fixture
def yarn(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yarn]:
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "place"
    folder.mkdir()
    made = Yarn(folder, cluster)
    yield made
    made.close()


def writing(yarn: Yarn, name: str) -> dict[str, Any]:
    """A job of two workers that write down every record that they are given."""
    for number in range(FILES):
        yarn.put(f"{name}/in/{number:03}.txt", "".join(f"{number} {line}\n" for line in range(LINES)))
    return {
        "roles": workers(WRITE, 2, restart={"scope": "task", "limit": 0}),
        "inputs": {"train": {"url": yarn.place(f"{name}/in"), "as": "shards", "epochs": EPOCHS}},
        "outputs": {"seen": {"url": yarn.place(f"{name}/out")}},
        "timeouts": {"grace": "5m"},
        "engines": {"yarn": {"attempts": 1000}},
    }


def masters(application: str) -> list[int]:
    found = in_containers(application)
    return [pid for pid, line in found.items() if "trainmaster.master.container" in line and "begin.py" in line]


def killed_often(yarn: Yarn, seed: int, kills: int) -> int:
    """One job whose master is killed up to so many times; how often it was."""
    choice = random.Random(seed)
    job = yarn.submit(**writing(yarn, f"of-{seed}"))
    application, done = yarn.application(job), 0
    job.until_status("its programs", lambda status: status["tasks"] and status["tasks"][1]["state"] == "running")

    def over() -> bool:
        return yarn.client().application_state(application)[0] != "running"

    while done < kills:
        until(lambda: masters(application) or over(), LIMIT, what=job.run.status)
        pause(choice.random() * MOST, lambda: False)
        present = masters(application)
        for pid in present:
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: pid not in masters(application), what="its end")
        done += bool(present)
        if not present and over():
            break
    as_if_nothing_had_been(yarn, job, f"of-{seed}")
    return done


def as_if_nothing_had_been(yarn: Yarn, job: Submitted, name: str) -> None:
    status = job.succeeded(LIMIT)
    assert [task["attempt"] for task in status["tasks"]] == [1, 1], job.story(status)
    told = yarn.tm("audit", job.id)
    assert told.returncode == 0, told.stdout
    assert f"{EPOCHS * FILES * LINES:,} records" in told.stdout, told.stdout
    assert "not counted" not in told.stdout, told.stdout
    seen = yarn.files(f"{name}/out")
    assert {path for path in seen if not path.endswith("/records")} <= {"_SUCCESS"}, list(seen)
    records = Counter(
        line for path, data in seen.items() if path.endswith("/records") for line in data.decode().splitlines()
    )
    assert len(records) == FILES * LINES
    assert set(records.values()) == {EPOCHS}


def kill_until(yarn: Yarn, seeds: Any, wanted: int, a_job: int) -> None:
    done = 0
    for seed in seeds(10 * wanted // a_job):
        done += killed_often(yarn, seed, min(a_job, wanted - done))
        if done >= wanted:
            return
    assert seeds.only is not None, f"only {done} kills"


@pytest.mark.full
def test_5_kills(yarn: Yarn, seeds: Any) -> None:
    kill_until(yarn, seeds, 5, 5)


@pytest.mark.soak
def test_50_kills(yarn: Yarn, seeds: Any) -> None:
    kill_until(yarn, seeds, 50, 10)
