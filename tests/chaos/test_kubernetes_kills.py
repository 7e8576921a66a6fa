"""What a Kubernetes cluster does to jobs at random moments, on a real one: masters' pods deleted, tasks' pods deleted, evicted and killed,
daemons killed and started.

The moments and the blows are drawn from the seed. Nothing is lost: each record is counted exactly once; where only the master is struck no
program begins twice, so each record is in the output exactly as often as it was given out; and nothing is left in the cluster.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos.test_kills import pause
from conformance.engines import Submitted, python, workers
from conformance.kubernetes_engine import Kubernetes
from conformance.test_kubernetes_faults import delete, evict, kubernetes_on
from kubernetes import own_kubernetes, revived
from s3 import Server, serving
from waiting import until

from trainmaster.clusters.kubernetes import Cluster, Settings
from trainmaster.core.errors import EngineFailed
from trainmaster.host import linux

pytestmark = pytest.mark.xdist_group("kubernetes")

FILES, LINES, EPOCHS = 20, 10, 3
MOST = 4.0  # s between two blows
LIMIT = 300.0  # s for a master to be followed, and for a job to end; reached by a failure alone
WRITE = python("""
    import os, time
    from trainmaster import runtime
    os.makedirs("seen", exist_ok=True)
    with open("seen/records", "a") as file:
        for shard in runtime.shards("train", batch=1).shards():
            for record in shard.records():
                file.write(str(record).strip() + "\\n")
                file.flush()
                time.sleep(0.04)
""")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_kubernetes(Settings(nodes=2, fast_expiry=True)) as started:
        yield started


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[Server]:
    with serving(cluster.address) as started:
        yield started


@pytest.fixture
def kube(cluster: Cluster, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    with kubernetes_on(cluster, server, tmp_path, monkeypatch) as made:
        yield made


def writing(kube: Kubernetes, name: str, limit: int = 0) -> dict[str, Any]:
    """A job of two workers that write down every record that they are given."""
    for number in range(FILES):
        kube.put(f"{name}/in/{number:03}.txt", "".join(f"{number} {line}\n" for line in range(LINES)))
    return {
        "roles": workers(WRITE, 2, restart={"scope": "task", "limit": limit}),
        "inputs": {"train": {"url": kube.place(f"{name}/in"), "as": "shards", "epochs": EPOCHS}},
        "outputs": {"seen": {"url": kube.place(f"{name}/out")}},
        "timeouts": {"grace": "5m"},
    }


def counted_once(kube: Kubernetes, job: Submitted) -> dict[str, Any]:
    """Its final status."""
    status = job.succeeded(LIMIT)
    told = kube.tm("audit", job.id)
    assert told.returncode == 0, told.stdout
    assert f"{EPOCHS * FILES * LINES:,} records" in told.stdout, told.stdout
    assert "not counted" not in told.stdout, told.stdout
    until(lambda: not kube.left(job), LIMIT, what=lambda: kube.left(job))
    return status


# -- masters --


def masters(kube: Kubernetes, job: Submitted) -> list[dict[str, Any]]:
    """Its master's pods that are there and not going."""
    return [pod for pod in kube.pods(job, "master") if not pod["metadata"].get("deletionTimestamp")]


def killed_often(kube: Kubernetes, seed: int, kills: int) -> int:
    """One job whose master's pod is deleted up to so many times; how often it was. Its programs must not notice."""
    choice, name = random.Random(seed), f"of-{seed}"
    job, done, struck = kube.submit(**writing(kube, name)), 0, ""
    job.until_status("its programs", lambda status: status["tasks"] and status["tasks"][1]["state"] == "running", LIMIT)

    def next_or_over() -> bool:
        return over(job) or any(pod["metadata"]["uid"] != struck for pod in masters(kube, job))

    while done < kills:
        until(next_or_over, LIMIT, what=lambda: kube.pods(job))
        pause(choice.random() * MOST, lambda: False)
        if over(job):
            break
        for pod in masters(kube, job):
            struck, done = pod["metadata"]["uid"], done + 1
            with contextlib.suppress(EngineFailed):  # it went by itself
                delete(kube, pod)
    status = counted_once(kube, job)
    assert [task["attempt"] for task in status["tasks"]] == [1, 1], job.story(status)
    seen = kube.files(f"{name}/out")
    records = Counter(
        line for path, data in seen.items() if path.endswith("/records") for line in data.decode().splitlines()
    )
    assert len(records) == FILES * LINES
    assert set(records.values()) == {EPOCHS}
    return done


def over(job: Submitted) -> bool:
    return job.run.status()["state"] not in ("pending", "running")


def kill_until(kube: Kubernetes, seeds: Any, wanted: int, a_job: int) -> None:
    done = 0
    for seed in seeds(10 * wanted // a_job):
        done += killed_often(kube, seed, min(a_job, wanted - done))
        if done >= wanted:
            return
    assert seeds.only is not None, f"only {done} kills"


@pytest.mark.soak
def test_5_masters_are_deleted(kube: Kubernetes, seeds: Any) -> None:
    kill_until(kube, seeds, 5, 5)


@pytest.mark.soak
def test_a_master_is_deleted_50_times(kube: Kubernetes) -> None:
    """In one job, whose programs run until that is done."""
    choice = random.Random(50)
    program = f"echo pid $$; while ! test -e '{kube.folder}/go'; do sleep 0.1; done; echo done"
    job = kube.submit(workers(program, 2, restart={"scope": "task", "limit": 0}), timeouts={"grace": "5m"})
    for index in range(2):
        job.until_line("pid", f"worker:{index}")
    for _ in range(50):
        (pod,) = until(lambda: masters(kube, job), LIMIT, what=lambda: f"a master; {job.said()}")
        pause(choice.random() * MOST, lambda: False)
        delete(kube, pod)
        until(
            lambda pod=pod: pod["metadata"]["uid"] not in {one["metadata"]["uid"] for one in masters(kube, job)}, LIMIT
        )
    kube.write("go", "")
    status = job.succeeded(LIMIT)
    assert [task["attempt"] for task in status["tasks"]] == [1, 1], job.story(status)
    for index in range(2):
        assert [line.split()[0] for line in job.lines(f"worker:{index}")] == ["pid", "done"]
    until(lambda: not kube.left(job), LIMIT, what=lambda: kube.left(job))


# -- everything --


def pods_of_tasks(kube: Kubernetes, job: Submitted) -> list[dict[str, Any]]:
    return [pod for pod in kube.pods(job, "task") if not pod["metadata"].get("deletionTimestamp")]


def one_of_the_tasks(way: Callable[[Kubernetes, Any], None]) -> Callable[[Kubernetes, Submitted, random.Random], None]:
    def strike(kube: Kubernetes, job: Submitted, choice: random.Random) -> None:
        if found := pods_of_tasks(kube, job):
            way(kube, choice.choice(found))

    return strike


def delete_a_master(kube: Kubernetes, job: Submitted, choice: random.Random) -> None:
    for pod in masters(kube, job):
        delete(kube, pod)


def kill_a_process(kube: Kubernetes, job: Submitted, choice: random.Random) -> None:
    """Of a master, an agent or a program."""
    if found := [pod for pod in kube.pods(job) if pod["spec"].get("nodeName")]:
        pids = kube._processes(choice.choice(found))
        if pids and (process := linux.look(choice.choice(pids))) is not None:
            linux.send(process.pid, process.start, signal.SIGKILL)


def restart_a_daemon(kube: Kubernetes, job: Submitted, choice: random.Random) -> None:
    """It is away for a while, of up to some seconds beyond what nodes may be silent for."""
    name = choice.choice(
        ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet-1", "kubelet-2"]
    )
    kube.cluster.daemon(name).kill()
    pause(choice.choice([0, 0, 2, 5, 10]), lambda: False)
    revived(kube.cluster)


BLOWS: tuple[Callable[[Kubernetes, Submitted, random.Random], None], ...] = (
    one_of_the_tasks(delete), one_of_the_tasks(evict), delete_a_master, kill_a_process, restart_a_daemon,
)  # fmt: skip


def struck_often(kube: Kubernetes, seed: int, blows: int) -> None:
    choice, name = random.Random(seed), f"of-{seed}"
    job, struck = kube.submit(**writing(kube, name, 1000)), []
    job.until_status("its programs", lambda status: status["tasks"] and status["tasks"][1]["state"] == "running", LIMIT)
    for _ in range(blows):
        pause(choice.random() * MOST, lambda: False)
        if over(job):
            break
        blow = choice.choice(BLOWS)
        struck.append(blow.__qualname__)
        with contextlib.suppress(EngineFailed):  # what was to be struck went by itself
            blow(kube, job, choice)
    print(f"seed {seed}: {struck}")
    counted_once(kube, job)


@pytest.mark.soak
def test_5_blows(kube: Kubernetes, seeds: Any) -> None:
    for seed in seeds(1):
        struck_often(kube, seed, 5)


@pytest.mark.soak
def test_blows_of_many_seeds(kube: Kubernetes, seeds: Any) -> None:
    for seed in seeds(10):
        struck_often(kube, seed, 10)
