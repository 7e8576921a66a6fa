"""What a Kubernetes cluster suffers in the middle of jobs: daemons, nodes, masters and pods that go, and what the jobs make of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from chaos.test_kills import pause
from conformance.engines import TM, Submitted, python, role, workers
from conformance.kubernetes_engine import Kubernetes
from conformance.test_clusters import held, lives, running
from kubernetes import own_kubernetes, revived
from s3 import Server, lead_to, serving
from waiting import until

from trainmaster.clusters.kubernetes import Cluster, Settings
from trainmaster.clusters.kubernetes.images import DEBIAN as IMAGE
from trainmaster.core.errors import NotFound
from trainmaster.host import linux

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.full]  # of the file a part; the rest is for the soak

TELL = 180.0  # s within which what came back has been heard of; reached by a failure alone
AWAY = 30.0  # s that an API server is away
BEYOND = 120.0  # s that agents may take to be back; 2 to 3 are usual
HOST = "kubernetes.io/hostname"
KINDS = "pods,secrets,services,replicasets,serviceaccounts,roles,rolebindings,configmaps"


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with own_kubernetes(Settings(nodes=2, fast_expiry=True)) as started:
        yield started


@pytest.fixture(scope="module")
def server(shared: Cluster) -> Iterator[Server]:
    with serving(shared.address) as started:
        yield started


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    """A cluster that is left as it comes. One with fast expiry may take a node as silent when its API server was away for longer than the
    nodes' time: the controller judges by what it knew before (one time in three, with any pod of so short a toleration).
    """
    with (
        own_kubernetes(Settings(nodes=2)) as cluster,
        serving(cluster.address) as server,
        kubernetes_on(cluster, server, tmp_path, monkeypatch) as made,
    ):
        yield made


@pytest.fixture
def kube(shared: Cluster, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    with kubernetes_on(shared, server, tmp_path, monkeypatch) as made:
        yield made


@contextmanager
def kubernetes_on(
    cluster: Cluster, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kubernetes]:
    """A cluster of a test's own as an engine; what the test killed of it lives again before jobs are looked for."""
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    lead_to(server, monkeypatch)
    monkeypatch.setenv("TRAINMASTER_SITE", "")  # the row's own, until the test is over
    revived(cluster)
    place = folder / "place"
    place.mkdir()
    made = Kubernetes(place, cluster, server)
    try:
        yield made
    finally:
        revived(cluster)
        made.close()


# -- what is done to a job, and how it must end --


def block(kube: Kubernetes, **keys: Any) -> dict[str, Any]:
    """`engines` of a job that says more than every job of the row does."""
    return {"kubernetes": {**kube.own()["engines"]["kubernetes"], **keys}}


def on_node(number: int) -> dict[str, Any]:
    return {"node_selector": {HOST: f"node-{number}"}}


def rather(number: int) -> dict[str, Any]:
    """On this node, where it is there."""
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [f"node-{number}"]}]}
    one = {"weight": 100, "preference": term}
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [one]}}}


def pod_of(kube: Kubernetes, job: Submitted, task: str) -> dict[str, Any]:
    """The pod that a task has now."""
    name = [event for event in job.told("granted") if event["task"] == task][-1]["container"]
    return next(pod for pod in kube.pods(job) if pod["metadata"]["name"] == name)


def master_of(kube: Kubernetes, job: Submitted) -> dict[str, Any]:
    """The pod of its master, which is not going."""
    found = [pod for pod in kube.pods(job, "master") if not pod["metadata"].get("deletionTimestamp")]
    assert len(found) == 1, found
    return found[0]


def kubectl(kube: Kubernetes, *words: str, **more: Any) -> str:
    return kube.cluster.kubectl("-n", kube.cluster.namespace, *words, **more)


def delete(kube: Kubernetes, pod: Mapping[str, Any]) -> None:
    kube.cluster.ask("DELETE", f"/api/v1/namespaces/{kube.cluster.namespace}/pods/{pod['metadata']['name']}")


def evict(kube: Kubernetes, pod: Mapping[str, Any]) -> None:
    about = {"name": pod["metadata"]["name"], "namespace": kube.cluster.namespace}
    path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}/eviction"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about}
    answer = kube.cluster.ask("POST", path, body)
    assert answer.status == 201, answer.said


def kill_agent(program: int) -> None:
    """The one whose program this is, which ends with it."""
    os.kill(linux.look(program).parent, signal.SIGKILL)
    until(lambda: not lives(program), TELL, what="the program's end")


def restarted(cluster: Cluster, *names: str) -> None:
    for name in names:
        cluster.daemon(name).kill()
    for name in names:
        cluster.daemon(name).start()
    cluster.wait_ready()


def goes_on_to_its_end(kube: Kubernetes, job: Submitted, tasks: int = 2, epoch: int = 1) -> None:
    """As nothing had been: one start of each program."""
    kube.write("go", "")
    status = job.succeeded(TELL)
    assert status["epoch"] == epoch, job.story(status)
    assert [task["attempt"] for task in status["tasks"]] == [1] * tasks, job.story(status)
    for index in range(tasks):
        assert [line.split()[0] for line in job.lines(f"worker:{index}")] == ["pid", "done"]
    until(lambda: not kube.left(job), TELL, what=lambda: kube.left(job))


def follows(kube: Kubernetes, job: Submitted, epoch: int, since: Mapping[str, Any], tasks: int = 2) -> None:
    """Wait until a master of this epoch has all agents, which must be soon after its container, of the pod `since`, has begun."""

    def back() -> list[dict[str, Any]] | None:
        found = [one for one in job.told("agent-connected") if one["epoch"] == epoch]
        return found if len({one["task"] for one in found}) == tasks else None

    job.until_status(f"master {epoch}", lambda status: status["epoch"] >= epoch, TELL)
    found = until(back, TELL, what=lambda: job.events()[-20:])
    (took,) = [one for one in job.told("master-started") if one["epoch"] == epoch]
    beyond = [float(one["at"]) - began(since) for one in (took, found[-1])]
    print(
        f"master {epoch} took over {beyond[0]:.1f} s after its container began, and had all agents after {beyond[1]:.1f}"
    )
    assert beyond[1] < BEYOND, f"{beyond}\n{since['status']}\n{agents_say(kube, job)}"


def agents_say(kube: Kubernetes, job: Submitted) -> str:
    """The ends of their own logs, which are in their pods alone."""
    roots = [
        Path(f"/proc/{kube._processes(pod)[0]}/root/trainmaster/home/.trainmaster") for pod in kube.pods(job, "task")
    ]
    return "\n".join(log.read_text()[-3000:] for root in roots for log in root.rglob("agent.log"))


def began(pod: Mapping[str, Any]) -> float:
    """When its program's container last began, to the second below."""
    (row,) = pod["status"]["containerStatuses"]
    return datetime.fromisoformat(row["state"]["running"]["startedAt"]).timestamp()


def runs(kube: Kubernetes, job: Submitted, other: str = "", count: int = 0) -> dict[str, Any]:
    """The master's pod, once its container runs: of another pod than this, or one that began so often again."""

    def found() -> dict[str, Any] | None:
        for pod in kube.pods(job, "master"):
            for row in pod["status"].get("containerStatuses") or ():
                new = pod["metadata"]["uid"] != other and row["restartCount"] >= count
                if new and row["state"].get("running"):
                    return pod
        return None

    return until(found, TELL, what=lambda: kube.pods(job, "master"))


# -- the control plane --


@pytest.mark.soak
def test_kubelets_die_and_come_back(kube: Kubernetes) -> None:
    job = running(kube)
    for number in (1, 2):
        restarted(kube.cluster, f"kubelet-{number}")
    goes_on_to_its_end(kube, job)


@pytest.mark.soak
@pytest.mark.parametrize("daemon", ["etcd", "kube-apiserver", "kube-controller-manager"])
def test_a_daemon_comes_back_and_pods_are_granted_again(kube: Kubernetes, daemon: str) -> None:
    """No program notices; what is asked for afterwards is granted, so the master watches again."""
    job = running(kube)
    pids = [kube.process(job, 1, f"worker:{index}") for index in range(2)]
    kube.cluster.daemon(daemon).kill()
    kube.cluster.revive()
    assert all(map(lives, pids))
    kill_agent(pids[1])
    job.until_line("attempt 2", "worker:1")
    kube.write("go", "")
    status = job.succeeded(TELL)
    assert (status["epoch"], [task["attempt"] for task in status["tasks"]]) == (1, [1, 2])


@pytest.mark.soak
def test_an_api_server_is_away_for_half_a_minute(patient: Kubernetes) -> None:
    """What runs goes on, what died meanwhile begins again as soon as there is somebody to ask; and whoever watches goes on too."""
    job = running(patient)
    program = patient.process(job, 1, "worker:1")
    with subprocess.Popen(
        [TM, "wait", job.id], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as watching:
        try:
            patient.cluster.daemon("kube-apiserver").kill()
            kill_agent(program)
            pause(AWAY, lambda: False)
            patient.cluster.revive()
            job.until_line("attempt 2", "worker:1")
            patient.write("go", "")
            status = job.succeeded(TELL)
            assert (status["epoch"], [task["attempt"] for task in status["tasks"]]) == (1, [1, 2])
            said, _ = watching.communicate(timeout=TELL)
            assert watching.returncode == 0, said
        finally:
            watching.kill()


@pytest.mark.soak
def test_a_job_ends_while_there_is_no_api_server(kube: Kubernetes) -> None:
    """What is left of it in the cluster goes when there is one."""
    job = running(kube)
    kube.cluster.daemon("kube-apiserver").kill()
    kube.write("go", "")
    job.until_status("its end", lambda status: status["state"] == "succeeded", TELL)
    pause(AWAY, lambda: False)
    kube.cluster.revive()
    assert [task["attempt"] for task in job.succeeded(TELL)["tasks"]] == [1, 1]
    until(lambda: not kube.left(job), TELL, what=lambda: kube.left(job))


# -- masters --


@pytest.mark.parametrize("keeps", [pytest.param("storage", marks=pytest.mark.soak), "nothing"])
def test_the_masters_pod_is_deleted(kube: Kubernetes, keeps: str) -> None:
    """Another takes over, twice; of a job without a storage of its own, too, whose log is in the cluster."""
    job = running(kube, timeouts={"grace": "5m"}, **({} if keeps == "storage" else {"storage": ""}))
    for epoch in (2, 3):
        before = master_of(kube, job)
        delete(kube, before)
        after = runs(kube, job, other=before["metadata"]["uid"])
        follows(kube, job, epoch, after)
    goes_on_to_its_end(kube, job, epoch=3)


@pytest.mark.soak
def test_the_masters_process_is_killed_in_its_pod(kube: Kubernetes) -> None:
    """The kubelet starts it again in the same pod; the second time it waits for 10 s before, which is within the agents' grace."""
    job = running(kube)
    (before,) = kube.pods(job, "master")
    for epoch in (2, 3):
        kube.kill_master(job)
        after = runs(kube, job, count=epoch - 1)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        follows(kube, job, epoch, after)
    goes_on_to_its_end(kube, job, epoch=3)


@pytest.mark.soak
def test_the_masters_node_is_lost(kube: Kubernetes) -> None:
    """The node controller notices, and the job goes on from the other node before its agents give up."""
    engines = block(kube, roles={"master": rather(1), "worker": on_node(2)})
    job = running(kube, engines=engines)
    before = master_of(kube, job)
    assert before["spec"]["nodeName"] == "node-1"
    kube.cluster.kill_node(1)
    after = runs(kube, job, other=before["metadata"]["uid"])
    assert after["spec"]["nodeName"] == "node-2"
    follows(kube, job, 2, after)
    goes_on(kube, job, 2)
    revived(kube.cluster)


@pytest.mark.soak
def test_a_master_lives_on_where_its_kubelet_is_dead(kube: Kubernetes) -> None:
    """It has nothing to write; it hears that another follows and lets go of its agents, and does not begin again, until it is ended."""
    job = running(kube, engines=block(kube, roles={"master": rather(1), "worker": on_node(2)}))
    before = master_of(kube, job)
    assert before["spec"]["nodeName"] == "node-1"
    kube.cluster.daemon("kubelet-1").kill()
    kube.cluster.kubectl("cordon", "node-1")
    try:
        kubectl(kube, "delete", "pod", before["metadata"]["name"], "--force", "--grace-period=0", "--wait=false")
        after = runs(kube, job, other=before["metadata"]["uid"])
        assert after["spec"]["nodeName"] == "node-2"
        follows(kube, job, 2, after)
        assert kube._processes(before)
        kube.cluster.revive()
        until(lambda: not kube._processes(before), TELL, what="the end of the master before")
        goes_on_to_its_end(kube, job, epoch=2)
    finally:
        kube.cluster.kubectl("uncordon", "node-1")


def goes_on(kube: Kubernetes, job: Submitted, epoch: int) -> None:
    kube.write("go", "")
    status = job.succeeded(TELL)
    assert status["epoch"] == epoch
    assert [task["attempt"] for task in status["tasks"]] == [1, 1], job.story(status)


# -- nodes --


@pytest.mark.soak
@pytest.mark.parametrize("way", ["silent", "dead", "deleted"])
def test_a_workers_node_is_lost(kube: Kubernetes, way: str) -> None:
    """Its kubelet falls silent and its pods go on; or all of it dies; or it is taken out of the cluster. Its tasks begin again elsewhere,
    which costs no restart, and what ran on it has ended when they do or soon after.
    """
    roles = workers(held(kube), 2, restart={"scope": "task", "limit": 0})
    engines = block(kube, roles={"master": on_node(1), "worker": rather(2)})
    job = kube.submit(roles, engines=engines)
    for index in range(2):
        job.until_line("pid", f"worker:{index}")
    assert {task["node"] for task in job.status()["tasks"]} == {"node-2"}
    pids = [kube.process(job, 1, f"worker:{index}") for index in range(2)]
    if way == "silent":
        kube.cluster.daemon("kubelet-2").kill()
    elif way == "dead":
        kube.cluster.kill_node(2)
    else:
        kube.cluster.kubectl("delete", "node", "node-2", "--wait=false")
    for index in range(2):
        job.until_line("attempt 2", f"worker:{index}")
    until(lambda: not any(map(lives, pids)), TELL, what="the end of what ran there")
    for index in range(2):
        until(lambda index=index: settled(job, f"worker:{index}"), TELL, what=lambda: job.events()[-20:])
        # Unreachable: its agent's silence told first, and the cluster's word came later than a cause is settled.
        assert settled(job, f"worker:{index}")[0] in ("node-lost", "killed-by-engine", "unreachable"), job.events()
    kube.write("go", "")
    status = job.succeeded(TELL)
    for task in status["tasks"]:
        assert (task["attempt"], task["node"]) == (2, "node-1"), job.story(status)
    if way == "deleted":  # who was taken out comes back by starting anew
        restarted(kube.cluster, "kubelet-2")


# -- pods of tasks --


@pytest.mark.parametrize("way", [pytest.param(delete, marks=pytest.mark.soak), evict])
def test_a_workers_pod_is_taken_away(kube: Kubernetes, way: Any) -> None:
    """It costs no restart, the reason is told, and what is asked for instead is one pod and no more."""
    job = kube.submit(workers(held(kube), 2, restart={"scope": "task", "limit": 0}))
    for index in range(2):
        job.until_line("pid", f"worker:{index}")
    way(kube, pod_of(kube, job, "worker:1"))
    job.until_line("attempt 2", "worker:1")
    until(lambda: settled(job, "worker:1"), TELL, what=lambda: job.events()[-20:])
    kube.write("go", "")
    status = job.succeeded(TELL)
    assert [task["attempt"] for task in status["tasks"]] == [1, 2], job.story(status)
    assert settled(job, "worker:1") == ["killed-by-engine"], job.story(status)


@pytest.mark.parametrize("way", [delete, pytest.param(evict, marks=pytest.mark.soak)])
def test_a_sidecar_that_does_not_end_delays_no_replacement(kube: Kubernetes, way: Any) -> None:
    """Kubernetes tells of no container's end while another one of its pod runs; our agent's own word is enough."""
    sidecar = {
        "name": "sidecar", "image": IMAGE, "command": ["sh", "-c", f"trap '' TERM; until test -e {kube.folder}/go; do sleep 0.1; done"],
        "volumeMounts": [{"name": "volume-0", "mountPath": str(kube.folder)}],
    }  # fmt: skip
    engines = block(kube, roles={"worker": {"pod": {"spec": {"containers": [sidecar]}}}})
    keys = {"restart": {"scope": "task", "limit": 0}, "stop": {"grace": "5m"}}
    job = kube.submit(workers(held(kube), 2, **keys), engines=engines)
    for index in range(2):
        job.until_line("pid", f"worker:{index}")
    before = pod_of(kube, job, "worker:1")
    program = kube.process(job, 1, "worker:1")
    way(kube, before)
    job.until_line("attempt 2", "worker:1")
    assert not lives(program)
    assert before["metadata"]["uid"] in [pod["metadata"]["uid"] for pod in kube.pods(job)], "its sidecar has its grace"
    until(lambda: settled(job, "worker:1"), TELL, what=lambda: job.events()[-20:])
    kube.write("go", "")
    status = job.succeeded(TELL)
    assert [task["attempt"] for task in status["tasks"]] == [1, 2], job.story(status)
    assert settled(job, "worker:1") == ["killed-by-engine"], job.story(status)


def settled(job: Submitted, task: str) -> list[str]:
    """The causes of what a task suffered."""
    return [event["cause"]["reason"] for event in job.told("settled") if event["cause"]["task"] == task]


def test_a_worker_gives_way_to_a_pod_of_higher_priority(kube: Kubernetes) -> None:
    """Its program is warned by the runtime, is told so, ends, and begins again when there is room. Kubernetes ends it at the same moment:
    this one uses its grace.
    """
    program = python(f"""
        import os, signal, time
        from trainmaster import runtime
        ended, warned = [], None
        signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
        print("attempt", os.environ["TRAINMASTER_ATTEMPT"], flush=True)
        while not os.path.exists("{kube.folder}/go") and not (warned and ended):
            if warned is None and (warned := runtime.warning()) is not None:
                print("warned of", warned.why, "with", warned.seconds, "s, at", time.time(), flush=True)
            time.sleep(0.005)
    """)
    size = {"cores": 5, "memory": "64MiB"}
    keys = {"restart": {"scope": "task", "limit": 0}, "stop": {"grace": "10s"}, "resources": size}
    with priority(kube, "faults-low", 10), priority(kube, "faults-high", 1000):
        low = block(kube, roles={"worker": {**on_node(2), "priority_class": "faults-low"}})
        job = kube.submit({"worker": role(program, **keys)}, engines=low)
        job.until_line("attempt 1")
        high = block(kube, roles={"worker": {**on_node(2), "priority_class": "faults-high"}})
        urgent = kube.submit({"worker": role(held(kube, "urgent-go"), **keys)}, engines=high)
        urgent.until_line("pid")
        kube.write("urgent-go", "")
        urgent.succeeded(TELL)
        job.until_line("attempt 2")
        until(lambda: settled(job, "worker:0"), TELL, what=lambda: job.events()[-20:])
        kube.write("go", "")
        job.succeeded(TELL)
    lines = job.lines("worker:0", 1)
    assert any(re.match(r"warned of .*(gave way|preempted).* with [\d.]+ s", line) for line in lines), lines
    assert [event["reason"] for event in job.told("warned")] == ["preempted"]
    assert settled(job, "worker:0") == ["preempted"], job.events()


@pytest.mark.parametrize("scope", ["task", "group"])
def test_an_elastic_job_gives_way_and_grows_back(kube: Kubernetes, scope: str) -> None:
    """On a node of six slots it has four workers, two of a low class. A job of four workers of the high class takes the slots of these two
    and the two that are free; it gives them back at its end.
    """
    size = {"cores": 1.3, "memory": "64MiB"}  # six fit into the node's 8 cores, not seven
    keys = {"restart": {"scope": scope, "limit": 0}, "stop": {"grace": "1s"}, "resources": size}
    places = {"worker": on_node(2), "master": on_node(1)}
    with priority(kube, "faults-low", 10), priority(kube, "faults-high", 1000):
        part = {"worker": {"class": "faults-high", "fraction": 0.5, "other": "faults-low"}}
        elastic = role(held(kube), {"min": 2, "max": 4}, **keys)
        job = kube.submit(
            {"worker": elastic}, engines=block(kube, roles=places, priority_class=part),
            framework="generic" if scope == "task" else "pytorch", scale={"every": "1s"},
        )  # fmt: skip
        until_running(job, 4)
        high = block(kube, roles=places, priority_class={"worker": "faults-high"})
        urgent = kube.submit({"worker": role(held(kube, "urgent-go"), 4, **keys)}, engines=high, gang=True)
        until_running(urgent, 4)
        until_running(job, 2)
        assert [task["task"] for task in job.status()["tasks"] if task["state"] == "running"] == [
            "worker:0",
            "worker:1",
        ]
        kube.write("urgent-go", "")
        urgent.succeeded(TELL)
        if scope == "group":
            job.run.scale("worker", 4)  # a group's growth costs a restart, so it would wait until that is worth it
        until_running(job, 4)
        kube.write("go", "")
        status = job.succeeded(TELL)
    assert not any(event["costs"] for event in job.told("incident")), "no restart is charged to the program"
    assert {event["reason"] for event in job.told("warned")} == {"preempted"}
    given = {event["task"] for event in job.told("attempt-written-off") if event["reason"] == "preempted"}
    given |= {
        event["task"] for event in job.told("warned")
    }  # the second of a group may have ended with the first before its pod did
    assert given == {"worker:2", "worker:3"}, job.story(status)
    assert {tuple(event["left"]) for event in job.told("resized") if event["left"]} <= {
        ("worker:2",), ("worker:3",), ("worker:2", "worker:3"), ("worker:3", "worker:2"),
    }  # fmt: skip


def until_running(job: Submitted, count: int) -> None:
    """Wait until exactly so many of its tasks run, and no other is on its way to."""
    job.until_status(
        f"{count} tasks that run",
        lambda status: [task["state"] for task in status["tasks"] if task["container"]] == ["running"] * count,
        TELL,
    )


@contextmanager
def priority(kube: Kubernetes, name: str, value: int) -> Iterator[None]:
    made = {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value,
    }  # fmt: skip
    kube.cluster.kubectl("apply", "-f", "-", input=json.dumps(made))
    try:
        yield
    finally:
        kube.cluster.kubectl("delete", "priorityclass", name)


@pytest.mark.soak
def test_a_quota_is_full_and_is_raised(kube: Kubernetes) -> None:
    """The job waits with the quota's words and figures, and goes on when there is room."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "faults"},
        "spec": {"hard": {"pods": "2"}},
    }
    kubectl(kube, "create", "-f", "-", input=json.dumps(quota))
    try:
        until(lambda: "hard" in kubectl(kube, "get", "quota", "faults", "-o", "json").partition('"status"')[2], TELL)
        job = kube.submit(workers(held(kube), 2))
        status = job.until_status("its waiting", lambda status: "quota" in (status["waiting"] or ""), TELL)
        assert re.search(
            r"quota faults is full: .*asked pods=1, used pods=2 of .*2|quota faults is full", status["waiting"]
        )
    finally:
        kubectl(kube, "delete", "quota", "faults")
    for index in range(2):
        job.until_line("pid", f"worker:{index}")
    kube.write("go", "")
    status = job.succeeded(TELL)
    assert [task["attempt"] for task in status["tasks"]] == [1, 1]
    assert status["waiting"] in (None, "")


@pytest.mark.soak
@pytest.mark.parametrize("at_once", [False, True])
def test_a_program_takes_too_much_memory(kube: Kubernetes, at_once: bool) -> None:
    """Little by little, as our own watch notices, or faster than anyone but the kernel does; the user reads the same."""
    program = python(f"""
        import time
        held = []
        while True:
            held.append(b"x" * {"(1 << 30)" if at_once else "(8 << 20)"})
            time.sleep(0.2)
    """)
    small = {"cores": 0.05, "memory": "96MiB"}
    job = kube.submit(workers(program, resources=small, restart="never"))
    reason = job.failed("out-of-memory", TELL)
    assert "96 MiB" in reason["words"], reason
    assert "roles.worker.resources.memory" in reason["advice"]


@pytest.mark.soak
def test_a_program_fills_its_disk(kube: Kubernetes) -> None:
    """Its kubelet evicts the pod, and says why for as long as what runs there does not end as if nothing were the matter."""
    program = python("""
        import time
        with open("/tmp/full", "wb") as file:
            for _ in range(64):
                file.write(b"x" * 2**20)
                file.flush()
        time.sleep(1000)
    """)
    limits = {"name": "program", "resources": {"limits": {"ephemeral-storage": "16Mi"}}}
    engines = block(kube, pod={"spec": {"containers": [limits]}})
    job = kube.submit({"worker": role(program, restart={"limit": 0}, resources={"memory": "256MiB"})}, engines=engines)
    reason = job.failed("disk-full", TELL)
    assert "total limit of containers 16Mi" in reason["words"], reason
    assert "ephemeral-storage" in reason["advice"], reason


# -- the whole job --


@pytest.mark.soak
@pytest.mark.parametrize("keeps", ["storage", "nothing"])
def test_who_deletes_the_jobs_config_map_deletes_all(kube: Kubernetes, keeps: str) -> None:
    job = running(kube, **({} if keeps == "storage" else {"storage": ""}))
    pids = [kube.process(job, 1, f"worker:{index}") for index in range(2)]
    kubectl(kube, "delete", "configmap", job.id, "--wait=false")

    def left() -> list[str]:
        return kubectl(kube, "get", KINDS, "-l", f"trainmaster/job={job.id}", "-o", "name").split()

    until(lambda: not left(), TELL, what=left)
    assert not any(map(lives, pids))
    if keeps == "nothing":  # its log is gone as well
        with pytest.raises(NotFound, match=f"{job.id} is no more: there is no ConfigMap {job.id}"):
            job.end(TELL)
        kube.jobs.remove(job)  # nothing more is to be heard of it
        return
    status = job.end(TELL)
    assert status["state"] == "killed", status
    assert "somebody has deleted it" in status["reason"]["words"], status
