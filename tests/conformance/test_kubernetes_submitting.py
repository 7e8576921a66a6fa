"""Submitting to a Kubernetes: who may, what is wrong with what is asked, and what is told of it.

Each test has a namespace of its own, which enforces the Pod Security Standard "restricted" and where the users `edit` and `view` have their
roles. What goes wrong at submit is one clear error, and nothing is left: no object in the namespace, no job on this machine. What goes
wrong later is told in words, and the job can be ended; then nothing is left but its history.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from conformance.engines import TM, Submitted
from conformance.kubernetes_engine import masters_here
from kubernetes import Cluster
from parts import not_run
from waiting import until

import trainmaster
from trainmaster.client.jobs.places import job_ids
from trainmaster.clusters.kubernetes import images
from trainmaster.clusters.kubernetes.images import HOST
from trainmaster.core.errors import EngineFailed
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.contract import Submission
from trainmaster.engines.kubernetes.client import KubernetesClient
from trainmaster.engines.kubernetes.submit import objects, rights
from trainmaster.kube.blocking import Blocking
from trainmaster.kube.client import Client
from trainmaster.kube.config import load
from trainmaster.kube.kinds import (
    CLAIMS,
    CONFIGMAPS,
    PODS,
    QUOTAS,
    REPLICA_SETS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)

pytestmark = pytest.mark.xdist_group("kubernetes")
full = pytest.mark.full

LIMIT = 180.0  # s for a job; reached by a failure alone
KINDS = (
    PODS, SECRETS, SERVICES, REPLICA_SETS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CONFIGMAPS, CLAIMS, QUOTAS,
)  # fmt: skip
NOWHERE = "localhost/nosuch/image:1"
SMALL = {"resources": {"cores": 0.05, "memory": "96MiB"}}
WAIT = "echo here; until test -e /tmp/go; do sleep 0.05; done"


@attrs.define(slots=False)
class Place:
    """A namespace, and a directory from which is submitted to it."""

    cluster: Cluster
    namespace: str
    folder: Path
    there: set[str] = attrs.field(factory=set)  # objects that are nobody's to remove
    jobs: list[Submitted] = attrs.field(factory=list)

    def kubectl(self, *words: str, told: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.namespace, *words, input=told)

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", told=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        self.there |= self.objects()

    def objects(self, labels: str = "") -> set[str]:
        """As `kubectl get -o name` tells them, which takes a third of a second of a core."""
        return {
            f"{kind.name.lower()}{kind.group and '.'}{kind.group}/{one['metadata']['name']}"
            for kind in KINDS
            for one in self._kube.list(kind, labels=labels, metadata=True)[0]
        }

    @functools.cached_property
    def _kube(self) -> Blocking:
        return Blocking(load({"KUBECONFIG": str(self.cluster.kubeconfig("admin"))}, namespace=self.namespace))

    def left(self) -> list[str]:
        """What somebody has made there, and not removed."""
        return sorted(self.objects() - self.there)

    def nothing_left(self) -> None:
        assert job_ids() == []
        until(lambda: not self.left(), what=lambda: self.left())

    def history_alone(self, *jobs: str) -> None:
        """Nothing is left of the jobs but ConfigMaps, each of which says whose it is."""
        until(lambda: all(name.startswith("configmap/") for name in self.left()), LIMIT, what=lambda: self.left())
        assert set(self.left()) == self.objects(f"trainmaster/job in ({','.join(jobs)})")

    def kubeconfig(self, user: str = "edit", **cluster: Any) -> str:
        """That of a user, who works in this namespace; `cluster`: what is said otherwise of the cluster."""
        told = json.loads(self.cluster.kubeconfig(user).read_text())
        told["contexts"][0]["context"]["namespace"] = self.namespace
        told["clusters"][0]["cluster"] |= cluster
        path = self.folder.parent / f"{user}-{len(cluster)}.kubeconfig"
        path.write_text(json.dumps(told))
        return str(path)

    def tm(self, *words: str, limit: float = LIMIT, **environ: str) -> subprocess.CompletedProcess[str]:
        told = {name: value for name, value in {**os.environ, **environ}.items() if value}
        return subprocess.run(
            [TM, *words], cwd=self.folder, env=told, capture_output=True, text=True, timeout=limit, check=False
        )

    def file(self, command: Any = "true", role: dict[str, Any] | None = None, **keys: Any) -> str:
        """A small job as a file."""
        of = {"command": command, "restart": "never", **SMALL, **(role or {})}
        job = {"name": "t", "roles": {"worker": of}, "master": SMALL, "files": [], **keys}
        path = self.folder / f"{uuid.uuid4().hex[:8]}.json"
        path.write_text(json.dumps(job))
        return path.name

    def submit(self, command: Any = "true", **keys: Any) -> Submitted:
        """The same, started."""
        done = self.tm("submit", self.file(command, **keys), "--engine", "kubernetes")
        assert done.returncode == 0, done.stderr
        self.jobs.append(Submitted(trainmaster.attach(done.stdout.strip())))
        return self.jobs[-1]

    def refused(self, file: str, status: int = 2, command: str = "submit", **environ: str) -> str:
        """What a submission is answered that is refused; nothing is left of it."""
        done = self.tm(command, file, "--engine", "kubernetes", **environ)
        assert (done.returncode, done.stderr.count("error: ")) == (status, 1), done.stderr
        assert "Traceback" not in done.stderr
        self.nothing_left()
        return done.stderr


@pytest.fixture
def bare(on_kubernetes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Masters have no account there."""
    place = Place(on_kubernetes, f"tests-{uuid.uuid4().hex[:12]}", tmp_path / "place")
    place.folder.mkdir()
    group = "rbac.authorization.k8s.io"
    made: list[dict[str, Any]] = [
        {
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": place.namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        },
        *(
            {
                "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": {"name": user, "namespace": place.namespace},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": user},
                "subjects": [{"kind": "User", "name": user}],
            }
            for user in ("edit", "view")
        ),
    ]  # fmt: skip
    on_kubernetes.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    own = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
    try:
        until(lambda: own <= place.objects(), what="what each namespace has")
        place.there = place.objects()
        monkeypatch.setenv("KUBECONFIG", place.kubeconfig())
        yield place
        for job in place.jobs:
            if job.status()["state"] in ("pending", "running"):  # a failed test has left it
                place.tm("kill", "--force", job.id)
    finally:
        on_kubernetes.kubectl("delete", "namespace", place.namespace, "--wait=false")


@pytest.fixture
def place(bare: Place) -> Place:
    """Masters have the account there that `tm cluster grants` prints."""
    bare.apply(*rights.granted(bare.namespace))
    return bare


@pytest.fixture
def claim(place: Place) -> Iterator[dict[str, str]]:
    """A volume that all pods can mount, as the entry of a job; its files are in the directory `volume` here."""
    folder, size = place.folder / "volume", {"storage": "1Mi"}
    folder.mkdir()
    folder.chmod(0o777)  # pods are another user
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    about = {"name": "results", "namespace": place.namespace}
    volume = {**spec, "capacity": size, "hostPath": {"path": str(folder)}, "claimRef": about}
    place.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": place.namespace}, "spec": volume},
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about,
            "spec": {**spec, "volumeName": place.namespace, "resources": {"requests": size}},
        },
    )  # fmt: skip
    yield {"claim": "results", "path": "/results"}
    place.cluster.kubectl("delete", "persistentvolume", place.namespace, "--wait=false")


# -- which cluster, and who we are --


def test_a_cluster_that_is_not_named_or_not_there_or_does_not_know_us_is_told(bare: Place) -> None:
    file = bare.file()
    assert "no cluster is known" in bare.refused(file, KUBECONFIG="", HOME=str(bare.folder))
    assert "there is no /nowhere" in bare.refused(file, KUBECONFIG="/nowhere")
    dead = bare.kubeconfig(server="https://127.0.0.1:1")
    assert "127.0.0.1:1: connection refused" in bare.refused(file, 3, KUBECONFIG=dead)
    stranger = Path(bare.kubeconfig("nobody"))
    stranger.write_text(stranger.read_text().replace('"token": "', '"token": "expired'))
    told = bare.refused(file, KUBECONFIG=str(stranger))
    assert "does not know who you are (nobody of " in told
    assert "[kubernetes-login]" in told


@full
def test_a_right_that_is_missing_is_named(bare: Place) -> None:
    file = bare.file()
    for user in ("nobody", "view"):
        told = bare.refused(file, KUBECONFIG=bare.kubeconfig(user))
        assert re.search(rf"{user} may not .*create pods.* in namespace {bare.namespace}", told)
        assert "--clusterrole edit" in told
    elsewhere = bare.file(engines={"kubernetes": {"namespace": "nowhere"}})
    told = bare.refused(elsewhere, KUBECONFIG=bare.kubeconfig("admin"))
    assert "there is no namespace nowhere" in told
    assert "engines.kubernetes.namespace: nowhere" in told
    # Of one who may not see whether it is there.
    assert "in namespace nowhere, or there is no namespace nowhere" in bare.refused(elsewhere)


@full
def test_without_an_account_for_masters_the_error_is_what_an_administrator_applies(bare: Place) -> None:
    told = bare.refused(bare.file())
    yaml = told.partition("apply once\n")[2]
    assert yaml.strip() == bare.tm("cluster", "grants").stdout.strip()
    bare.kubectl("apply", "-f", "-", told=yaml)
    bare.there = bare.objects()
    done = bare.tm("run", bare.file("echo fine"), "--engine", "kubernetes")
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    bare.history_alone(*job_ids())
    named = bare.tm(
        "submit", bare.file(engines={"kubernetes": {"service_account": "nosuch"}}), "--engine", "kubernetes"
    )
    assert named.returncode == 2
    assert "there is no service account nosuch" in named.stderr
    assert "engines.kubernetes.service_account: nosuch" in named.stderr


@pytest.mark.full
def test_the_pods_that_a_job_begins_with_are_made_with_its_masters_who_adopts_them(place: Place) -> None:
    """A third one, which the role can begin without, is left to the master."""
    job = place.submit("echo here", role={"replicas": {"min": 2, "max": 3}})
    pods = json.loads(place.kubectl("get", "pods", "-l", "trainmaster/part=task", "-o", "json"))["items"]
    made_with_master = {
        pod["metadata"]["name"] for pod in pods if "trainmaster/epoch" not in pod["metadata"]["annotations"]
    }
    assert len(made_with_master) == 2
    status = job.succeeded(LIMIT)
    assert {task["attempt"] for task in status["tasks"]} == {1}
    assert made_with_master <= {one["container"] for one in job.told("granted")}
    assert not job.told("stray")


@full
def test_who_may_make_roles_needs_no_account_and_each_job_has_its_own(
    bare: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", bare.kubeconfig("admin"))
    job = bare.submit(WAIT)
    job.until_line("here")
    assert {f"serviceaccount/{job.id}", f"role.rbac.authorization.k8s.io/{job.id}"} <= set(bare.left())
    pod = bare.kubectl(
        "get", "pods", "-l", "trainmaster/part=master", "-o", "jsonpath={.items[*].spec.serviceAccountName}"
    )
    assert pod == job.id
    job.run.kill("enough")
    assert job.end(LIMIT)["state"] == "killed"
    bare.history_alone(job.id)


# -- what is asked --

ABSENT = {"claim": "nosuch", "path": "/x"}
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {  # what is wrong -> the job's keys, the error's words, its place
    "an unknown key": ({"engines": {"kubernetes": {"namespaze": "x"}}}, "did you mean namespace?", "engines.kubernetes.namespaze"),
    "a template that takes what is ours": (
        {"engines": {"kubernetes": {"pod": {"spec": {"containers": [{"name": "program", "command": ["x"]}]}}}}},
        "a template cannot change it", "engines.kubernetes.pod.spec.containers[program].command",
    ),
    "a template with an unknown field": (
        {"engines": {"kubernetes": {"pod": {"spec": {"nodeNaem": "x"}}}}}, "kubectl explain pod.spec",
        "engines.kubernetes.pod.spec.nodeNaem",
    ),
    "a template that the cluster refuses": (
        {"engines": {"kubernetes": {"pod": {"spec": {"dnsPolicy": "Odd"}}}}}, 'spec.dnsPolicy: Unsupported value: "Odd"',
        "engines.kubernetes.pod.spec.dnsPolicy",
    ),
    "what the namespace forbids": (
        {"engines": {"kubernetes": {"volumes": [{"host_path": "/etc", "path": "/x"}]}}}, 'violates PodSecurity "restricted:latest"',
        "engines.kubernetes.volumes",
    ),
    "a master that the namespace forbids": (
        {"engines": {"kubernetes": {"roles": {"master": {"run_as": {"user": 0}}}}}}, "master: the cluster refuses the pod",
        "engines.kubernetes.roles.master.run_as",
    ),
    "a class that is not there": (
        {"engines": {"kubernetes": {"priority_class": "nosuch"}}}, "no PriorityClass with name nosuch", "roles.worker",
    ),
    "a claim that is not there": (
        {"engines": {"kubernetes": {"volumes": [ABSENT]}}}, "there is no volume claim nosuch in namespace", "engines.kubernetes.volumes",
    ),
    "a claim of a role that is not there": (
        {"engines": {"kubernetes": {"roles": {"worker": {"volumes": [ABSENT]}}}}}, "there is no volume claim nosuch",
        "engines.kubernetes.roles.worker.volumes",
    ),
    "a config map that is not there": (
        {"engines": {"kubernetes": {"volumes": [{"config_map": "nosuch", "path": "/x"}]}}}, "there is no ConfigMap nosuch",
        "engines.kubernetes.volumes",
    ),
    "a secret that is not there": (
        {"engines": {"kubernetes": {"volumes": [{"secret": "nosuch", "path": "/x"}]}}}, "there is no Secret nosuch",
        "engines.kubernetes.volumes",
    ),
    "an output in a pod": (
        {"outputs": {"model": {"url": "file:///tmp/model", "from": "worker:0"}}}, "goes with it", "outputs.model.url: file:///tmp/model",
    ),
    "packages to be shipped": (
        {"environment": {"requirements": "data.csv"}}, "tm image build registry.example.org/team/NAME:TAG -r", "environment.requirements",
    ),
    "a checkpoint without a place": ({"checkpoint": "ckpt"}, "checkpoints have no place", "checkpoint.url"),
    "an input of this machine": ({"inputs": {"train": "data.csv"}}, "the job has none", "storage"),
    "an output of this machine": ({"outputs": {"model": "out"}}, "the job has none", "storage"),
    "a name that is too long": ({"name": "x" * 64}, "at most 63", "name"),
    "a name with odd letters": ({"name": "a b/c"}, "expected a name of letters", "name"),
    "more files than Secrets hold": ({"files": ["big"]}, "Secrets of a cluster hold 32 MiB", "files"),
}  # fmt: skip


@full
def test_bad_input_is_told_by_its_place(place: Place) -> None:
    (place.folder / "data.csv").write_text("1\n")
    (place.folder / "big").write_bytes(os.urandom(34 * 2**20))
    for what, (keys, words, where) in WRONG.items():
        told = place.refused(place.file(**keys))
        assert words in told, what
        assert f"\n  {where}" in told, (what, told)
    told = place.refused(place.file(), TRAINMASTER_KUBERNETES_IMAGE="")
    assert "has no image" in told
    assert "environment.image" in told


def test_an_output_on_a_volume_is_kept_and_one_that_exists_is_refused_before_the_program_starts(
    place: Place, claim: dict[str, str]
) -> None:
    keys: dict[str, Any] = {
        "outputs": {"model": {"url": "file:///results/digits", "from": "worker:0"}}, "engines": {"kubernetes": {"volumes": [claim]}},
    }  # fmt: skip
    place.submit("mkdir model; echo weights > model/w.txt", **keys).succeeded(LIMIT)
    volume = place.folder / "volume"
    assert (volume / "digits/worker-0/w.txt").read_text() == "weights\n"
    again = place.submit("touch /results/ran; mkdir model; echo others > model/w.txt", **keys)
    reason = again.failed("output-unwritable")
    assert "is there already, and not of this job" in reason["words"]
    assert "overwrite: true" in place.tm("status", again.id).stdout
    assert not (volume / "ran").exists()
    late = place.submit(
        "mkdir model /results/late /results/late/worker-0; echo made > model/w.txt; echo x > /results/late/worker-0/theirs",
        **{**keys, "outputs": {"model": {"url": "file:///results/late", "from": "worker:0"}}},
    )  # fmt: skip
    late.failed("commit-refused")
    assert (volume / "late/_partial" / late.id / "worker-0/w.txt").read_text() == "made\n"


def test_an_environment_that_is_not_on_the_volume_ends_the_job(place: Place, claim: dict[str, str]) -> None:
    job = place.submit(
        "python -c 'print(1)'", environment={"path": "/results/nosuch"}, engines={"kubernetes": {"volumes": [claim]}}
    )
    assert job.failed("no-python")["figures"]["path"] == "/results/nosuch/bin/python3"


@full
def test_a_service_account_of_tasks_that_is_not_there_is_refused(place: Place) -> None:
    refusal = place.refused(place.file(engines={"kubernetes": {"task_service_account": "nosuch"}}))
    assert "there is no service account nosuch" in refusal
    assert "engines.kubernetes.task_service_account" in refusal


def created(client: KubernetesClient, job_id: str, certificate: str) -> None:
    """Make the objects of a job whose master is beside its client: no pod."""
    job = job_from({
        "name": "t", "roles": {"worker": {"command": "true"}}, "environment": {"image": NOWHERE}, "storage": "s3://nowhere/jobs",
        "engines": {"kubernetes": {"run_master": "client", "runtime_image": NOWHERE}},
    })  # fmt: skip
    secret = {"token": "t" * 64, "key": "k"}
    client.submit(Submission(job_id, job, {}, secret, certificate, (), (), lambda without: Path("none")))


def test_a_submission_whose_id_is_taken_leaves_the_other_job_alone(bare: Place) -> None:
    client = KubernetesClient()
    created(client, "t-aaaaaa", "the first")
    before = bare.left()
    with pytest.raises(EngineFailed, match="already exists"):
        created(client, "t-aaaaaa", "the second")
    assert bare.left() == before
    assert json.loads(bare.kubectl("get", "configmap", "t-aaaaaa", "-o", "json"))["data"]["certificate"] == "the first"
    bare.kubectl("delete", "configmap", "t-aaaaaa")


def test_a_look_for_a_job_deletes_nobodys_expired_job(bare: Place) -> None:
    client = KubernetesClient()
    created(client, "t-aaaaaa", "certificate")
    bare.kubectl("annotate", "configmap", "t-aaaaaa", f"{objects.ENDED}=2020-01-01T00:00:00Z")
    assert [*client.find_jobs("t-")] == ["t-aaaaaa"]
    assert not client.find_jobs("other")
    assert "configmap/t-aaaaaa" in bare.left()
    created(client, "t-bbbbbb", "certificate")  # a submission clears
    assert "configmap/t-aaaaaa" not in bare.left()
    bare.kubectl("delete", "configmap", "t-bbbbbb")


def test_a_dry_run_is_yaml_that_the_cluster_takes(place: Place) -> None:
    kubernetes = {"volumes": [{"empty": "1GiB", "path": "/scratch"}], "node_selector": {"kubernetes.io/os": "linux"}}
    file = place.file("echo $HOME '$(HOME)'", engines={"kubernetes": kubernetes})
    done = place.tm("run", file, "--engine", "kubernetes", "--dry-run")
    assert done.returncode == 0, done.stderr
    place.nothing_left()
    answer = place.kubectl("apply", "--dry-run=server", "-f", "-", told=done.stdout)
    kinds = [line.partition("/")[0] for line in answer.splitlines() if line.endswith("(server dry run)")]
    assert sorted(kinds) == ["configmap", "configmap", "pod", "replicaset.apps", "secret", "service", "service"], answer
    place.nothing_left()


@full
def test_the_objects_of_a_model_s_command_are_written(place: Place, claim: dict[str, str]) -> None:
    assert place.tm("zoo", "init", "zoo").returncode == 0
    words = [
        "train",
        "--engine",
        "kubernetes",
        "--model_zoo",
        "zoo",
        "--model_def",
        "points.points.custom_model",
        "--num_ps_pods",
        "2",
    ]
    words += [
        "--volume",
        f"claim_name={claim['claim']},mount_path=/data",
        "--training_data",
        "/data/train",
        "--checkpoint_dir",
        "/data/servers",
    ]
    done = place.tm(*words, "--yaml", "objects.yaml")
    assert done.returncode == 0, done.stderr
    answer = place.kubectl("apply", "--dry-run=server", "-f", "-", told=(place.folder / "objects.yaml").read_text())
    assert answer.count("pod/") == 2, answer
    done = place.tm(*words, "--dry-run")
    assert done.returncode == 0, done.stderr
    described = yaml.safe_load(done.stdout)
    assert described["roles"]["ps"]["env"] == {"TRAINMASTER_PS_DIRECTORY": "/data/servers"}
    place.nothing_left()


@full
def test_a_dry_run_shows_volcanos_groups_too(place: Place) -> None:
    file = place.file(role={"replicas": 2}, gang=True, engines={"kubernetes": {"volcano": "q"}})
    done = place.tm("run", file, "--engine", "kubernetes", "--dry-run")
    assert done.returncode == 0, done.stderr
    [group] = [one for one in yaml.safe_load_all(done.stdout) if one["kind"] == "PodGroup"]
    assert group["spec"] == {"minMember": 2, "queue": "q"}
    place.nothing_left()


@full
def test_a_quota_that_is_full_at_submit_is_told_and_leaves_nothing(place: Place) -> None:
    full_now = {"hard": {"count/secrets": "1"}}
    place.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": full_now})
    until(lambda: _used(place, "few"))
    told = place.refused(place.file())
    assert "exceeded quota: few" in told
    assert "[quota]" in told


def _used(place: Place, quota: str) -> bool:
    return bool(place.kubectl("get", "resourcequota", quota, "-o", "jsonpath={.status.used}"))


# -- what is told while it waits --

WAITING: dict[str, tuple[dict[str, Any], str]] = {  # what is in the way -> the job's keys, the words of its status
    "no image, of the master": ({"environment": {"image": NOWHERE}}, f"its master's pod waits: .*cannot fetch the image {NOWHERE}"),
    "no image, of a task": ({"role": {"image": NOWHERE}}, f"cannot fetch the image {NOWHERE}"),
    "no node of that kind": (
        {"engines": {"kubernetes": {"node_selector": {"colour": "green"}}}},
        "its master's pod waits: no node of .* the labels that are wanted",
    ),
}  # fmt: skip


@full
def test_what_a_job_waits_for_is_told_in_words_and_it_can_be_killed(place: Place) -> None:
    made = {what: place.submit(**keys) for what, (keys, _) in WAITING.items()}
    for what, job in made.items():
        told = re.compile(WAITING[what][1])
        job.until_status(what, lambda status, told=told: told.search(str(status.get("waiting"))))
    done = place.tm("kill", *(job.id for job in made.values()))
    assert done.returncode == 0, done.stderr
    assert [job.status()["state"] for job in made.values()] == ["killed"] * len(made)
    place.history_alone(*(job.id for job in made.values()))


@full
def test_a_quota_that_admits_no_pod_is_waited_for(place: Place) -> None:
    place.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    )
    until(lambda: _used(place, "none"))
    job = place.submit("echo fine")
    job.until_status("the quota", lambda status: "exceeded quota: none" in str(status.get("waiting")))
    place.kubectl("patch", "resourcequota", "none", "--type=merge", "-p", '{"spec": {"hard": {"pods": "1"}}}')
    job.until_status("one more pod", lambda status: "quota none is full" in str(status.get("waiting")))
    place.kubectl("delete", "resourcequota", "none")
    job.succeeded(LIMIT)
    place.history_alone(job.id)


# -- what can never run --


@full
def test_an_image_without_python_and_one_that_may_not_be_fetched_end_the_job(place: Place) -> None:
    """Of the master as of a task: Kubernetes would try for ever."""
    master, task = place.submit(environment={"image": HOST}), place.submit(role={"image": HOST})
    absent = place.submit(environment={"image": NOWHERE}, engines={"kubernetes": {"pull": "never"}})
    assert HOST in master.failed("no-python")["figures"]["node"]
    end = task.end(LIMIT)
    assert end["state"] == "failed"
    assert f"image {HOST}" in str(end["reason"])
    detail = absent.failed("refused")["figures"]["detail"]
    assert f"does not have the image {NOWHERE}, and may not fetch it (pull: never)" in detail
    place.history_alone(*(job.id for job in place.jobs))


# -- images of a user's own --


@full
def test_images_that_buildah_made_run_a_job_and_bring_the_runtime(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the recipes: one with a Python, one that only has our runtime, which is in no Secret then."""
    if shutil.which("buildah") is None:
        not_run("there is no buildah", "apt-get install buildah")
    conf = tmp_path / "storage.conf"
    conf.write_text(f'[storage]\ndriver = "overlay"\nrunroot = "{tmp_path}/run"\ngraphroot = "{tmp_path}/graph"\n')
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(conf))
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
    base = next(image for image in images.images() if image.name == images.DEBIAN)
    buildah("pull", f"docker-archive:{base.tar}")
    mark = uuid.uuid4().hex[:8]  # nothing that an earlier run has left on the nodes is taken for them
    program, runtime = (
        f"team/program:{mark}",
        f"localhost/runtime:{mark}",
    )  # the first without its registry, as users write it
    for name, given in ((program, []), (runtime, ["--runtime"])):
        done = place.tm("image", "build", name, *given, "--base", images.DEBIAN, "--with", "buildah")
        assert done.returncode == 0, done.stderr
        tar = tmp_path / f"{given}.tar"
        buildah("push", name, f"oci-archive:{tar}:{name}")
        assert place.cluster.load_everywhere(tar, str(tar)) == [name]
    (place.folder / "told.txt").write_text("of a file")
    job = place.submit(
        "id -u; cat told.txt; until test -e /tmp/go; do sleep 0.05; done",
        environment={"image": program}, files=["told.txt"], engines={"kubernetes": {"runtime_image": runtime}},
    )  # fmt: skip
    job.until_line("of a file")
    [pod] = [one["metadata"]["name"] for one in Blocking(load()).list(PODS, labels="trainmaster/part=task")[0]]
    assert not [name for name in place.left() if name.startswith("secret/trainmaster-runtime")]
    place.kubectl("exec", pod, "-c", "program", "--", "touch", "/tmp/go")
    job.succeeded(LIMIT)
    assert "worker:0 1000" in place.tm("logs", job.id).stdout
    place.history_alone(job.id)


def buildah(*words: str) -> None:
    done = subprocess.run(["buildah", *words], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr


# -- names --


@full
def test_names_that_kubernetes_would_not_have_and_two_jobs_of_one_name(place: Place) -> None:
    odd = f"3D.Net_{'x' * 50}"
    jobs = [place.submit(WAIT, name=odd), place.submit(WAIT, name="same"), place.submit(WAIT, name="same")]
    for job in jobs:
        job.until_line("here")
    told = place.tm("status", "same")
    assert told.returncode == 2
    assert "2 jobs named same are running" in told.stderr
    assert place.tm("kill", jobs[1].id).returncode == 0
    assert place.tm("status", "same").stdout.startswith(f"{jobs[2].id} running")
    assert place.tm("status", odd).stdout.startswith(f"{jobs[0].id} running")
    for job in (jobs[0], jobs[2]):
        job.run.kill()
        assert job.end(LIMIT)["state"] == "killed"
    place.history_alone(*(job.id for job in jobs))


# -- without a storage, and from elsewhere --


@full
def test_the_end_of_a_log_that_failed_is_kept_without_storage_and_that_is_said(place: Place) -> None:
    long = ["python3", "-c", "import sys\nfor n in range(9000): print(n, 'y' * 50)\nprint('last words')\nsys.exit(3)"]
    done = place.tm("run", place.file(long), "--engine", "kubernetes")
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("full logs") == 1, done.stderr
    assert "storage" in done.stderr
    [job] = job_ids()
    place.history_alone(job)
    place.jobs.append(Submitted(trainmaster.attach(job)))
    kept = place.jobs[-1].lines()
    assert kept[-1] == "last words"
    assert 200 * 1024 < sum(len(line) + 1 for line in kept) <= 260 * 1024


@full
def test_a_program_finds_no_secret_in_its_pod_but_in_its_own_variables(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever the program is: a template may name another user for its container alone."""
    monkeypatch.setenv("OF_TRAINER", "secret-of-the-trainer")
    monkeypatch.setenv("OF_WORKER", "secret-of-the-worker")
    places = "/trainmaster /run /tmp"
    look = f"grep -rsl --exclude-dir runtime -e secret-of-the -e token {places}; find /trainmaster/handover -type f"
    look += "; echo $OF_WORKER-$OF_TRAINER"
    roles = {
        "worker": {"command": look, "restart": "never", "env": {"OF_WORKER": None}, **SMALL},
        "trainer": {"command": look, "restart": "never", "env": {"OF_TRAINER": None}, **SMALL},
    }
    other = {"containers": [{"name": "program", "securityContext": {"runAsUser": 2345, "runAsGroup": 2345}}]}
    job = place.submit(roles=roles, engines={"kubernetes": {"roles": {"trainer": {"pod": {"spec": other}}}}})
    job.succeeded(LIMIT)
    assert sorted(job.run.logs()) == ["trainer:0 -[redacted]", "worker:0 [redacted]-"]
    place.history_alone(job.id)


@full
def test_a_job_is_found_from_another_machine(place: Place, tmp_path: Path) -> None:
    job = place.submit(f"{WAIT}; echo done")
    job.until_line("here")
    elsewhere = {"TRAINMASTER_STATE_DIR": str(tmp_path / "other")}
    assert place.tm("status", job.id, **elsewhere).stdout.startswith(f"{job.id} running")
    other = {"TRAINMASTER_STATE_DIR": str(tmp_path / "third")}
    assert job.id in place.tm("list", "--engine", "kubernetes", **other).stdout
    assert place.tm("logs", job.id, **other).stdout == "worker:0 here\n"
    assert place.tm("kill", job.id, **elsewhere).returncode == 0
    assert place.tm("status", job.id, **other).stdout.startswith(f"{job.id} killed")
    place.history_alone(job.id)


@full
def test_a_job_that_is_over_is_removed_with_its_objects(place: Place) -> None:
    job = place.submit(WAIT)
    job.until_line("here")
    refused = place.tm("remove", job.id)
    assert (refused.returncode, "is not over, so it is not removed" in refused.stderr) == (2, True), refused.stderr
    assert place.tm("kill", job.id).returncode == 0
    until(lambda: place.tm("remove", job.id).returncode == 0, LIMIT, what=lambda: place.tm("remove", job.id).stderr)
    place.jobs.remove(job)
    place.nothing_left()
    assert place.tm("status", job.id).returncode == 2


@full
def test_who_may_only_view_is_told_which_right_is_missing(place: Place, tmp_path: Path) -> None:
    job = place.submit(WAIT)
    job.until_line("here")
    view = {"KUBECONFIG": place.kubeconfig("view")}
    for elsewhere, right in (({}, "pods/portforward"), ({"TRAINMASTER_STATE_DIR": str(tmp_path / "other")}, "secrets")):
        for words in (("logs",), ("status",), ("kill",)):
            done = place.tm(*words, job.id, **view, **elsewhere)
            told = done.stderr
            if words == ("status",) and not elsewhere:  # the log, which may be read, has that
                told = done.stdout
                assert (done.returncode, done.stderr) == (0, "")
                assert re.search(r"worker:0 +running", told)
            else:
                assert (done.returncode, told.count("error: ")) == (2, 1), told
            assert right in told
            assert 'User "view" cannot' in told
    assert place.tm("kill", job.id).returncode == 0
    place.history_alone(job.id)


@full
def test_what_others_delete_is_told(place: Place) -> None:
    """Whoever deletes the ConfigMap forgets the job; without its ReplicaSet nothing runs it any more."""
    jobs = [place.submit(WAIT) for _ in range(3)]
    for job in jobs:
        job.until_line("here")
    forgotten, ended, bare = jobs
    place.kubectl("delete", "configmap", forgotten.id)
    place.kubectl("delete", "replicaset", f"{ended.id}-master")
    place.kubectl("delete", "secret", bare.id)
    for words in (("status",), ("kill",), ("kill", "--force"), ("wait",)):
        done = place.tm(*words, forgotten.id)
        assert (done.returncode, done.stderr.count("is no more: there is no ConfigMap")) == (2, 1), done.stderr
    listed = {one["id"]: one["state"] for one in json.loads(place.tm("list", "--json").stdout)}
    assert listed[forgotten.id] == "removed"
    until(lambda: ended.status()["state"] == "killed", LIMIT, what=lambda: ended.status())
    assert "somebody has deleted its ReplicaSet" in place.tm("status", ended.id).stdout
    place.jobs.remove(forgotten)
    # The Secret owns all pods. Where the task's goes first, the master sees a task whose pod somebody has deleted.
    state = until(
        lambda: (now := bare.status()["state"]) in ("killed", "failed") and now, LIMIT, what=lambda: bare.status()
    )
    cause = (
        f"the Secret {bare.id} was deleted from namespace {place.namespace}"
        if state == "killed"
        else "its pod .* was deleted"
    )
    assert re.search(cause, told := place.tm("status", bare.id).stdout), told
    place.history_alone(ended.id, bare.id)


@full
def test_a_submission_that_was_killed_is_told_and_removed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has left has no end of its own: the next command that looks for it ends it, later ones forget it."""
    (place.folder / "data.bin").write_bytes(os.urandom(20 * 2**20))
    command = [TM, "submit", place.file("sleep 1000", files=["data.bin"]), "--engine", "kubernetes"]
    asking = subprocess.Popen(
        command, cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        until(lambda: INSTANTS["its Secret is there"](place) or asking.poll() is not None, LIMIT)
        os.killpg(asking.pid, signal.SIGKILL)
    finally:
        asking.kill()
        asking.communicate()
    [job] = job_ids()
    if any(name.startswith("replicaset.apps/") for name in place.left()):  # it was quicker
        assert place.tm("kill", job).returncode == 0
        return
    assert "its master is not asked for yet" in place.tm("status", job).stdout
    monkeypatch.setattr(objects, "FORGOTTEN", timedelta(0))

    async def tidied() -> None:
        async with Client(load()) as client:
            await objects.tidy(client)

    asyncio.run(tidied())
    until(lambda: not place.left(), LIMIT, what=lambda: place.left())
    assert place.tm("kill", job).returncode == 2
    assert "is no more" in place.tm("status", job).stderr


# -- a master beside the command --


@full
def test_a_master_beside_the_client_is_taken_up_by_the_next_command(bare: Place) -> None:
    """The user's own rights are enough; what runs goes on while no master does."""
    job = bare.submit(f"{WAIT}; echo done", engines={"kubernetes": {"run_master": "client"}})
    job.until_line("here")
    assert bare.tm("status", job.id).stdout.startswith(f"{job.id} running")
    assert bare.tm("logs", job.id).stdout == "worker:0 here\n"
    [master] = masters_here(job.id)
    os.kill(master, signal.SIGKILL)
    until(lambda: not masters_here(job.id))
    [pod] = bare.kubectl("get", "pods", "-o", "name").split()
    watching = subprocess.Popen(
        [TM, "attach", job.id], cwd=bare.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until(
            lambda: len(job.told("agent-connected")) == 2 or watching.poll() is not None,
            LIMIT,
            what=lambda: job.events(),
        )
        bare.kubectl("exec", pod, "-c", "program", "--", "touch", "/tmp/go")
        said, _ = watching.communicate(timeout=LIMIT)
    finally:
        watching.kill()
        watching.wait()
    assert watching.returncode == 0, said
    assert "done\n" in said
    status = job.succeeded(LIMIT)
    assert [task["attempt"] for task in status["tasks"]] == [1]
    bare.history_alone(job.id)


# -- Ctrl-C --

INSTANTS: dict[str, Callable[[Place], object]] = {
    "the job is written here": lambda place: job_ids(),
    "something is in the cluster": lambda place: place.left(),
    "its Secret is there": lambda place: any(name.startswith("secret/t-") for name in place.left()),
    "its master is asked for": lambda place: any(name.startswith("replicaset.apps/") for name in place.left()),
}


@full
@pytest.mark.parametrize("instant", INSTANTS)
def test_an_interrupted_submission_leaves_nothing(place: Place, instant: str) -> None:
    """Or all of it, where it was over by then: a job that is known here."""
    (place.folder / "data.bin").write_bytes(os.urandom(20 * 2**20))
    command = [TM, "submit", place.file("sleep 1000", files=["data.bin"]), "--engine", "kubernetes"]
    asking = subprocess.Popen(
        command, cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        until(lambda: INSTANTS[instant](place) or asking.poll() is not None, LIMIT, what=instant)
        for _ in range(3):  # as people do who wait: no later one breaks off what the first has begun
            with contextlib.suppress(ProcessLookupError):
                os.killpg(asking.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                asking.wait(0.05)
        _, errors = asking.communicate(timeout=LIMIT)
    finally:
        asking.kill()
        asking.wait()
    assert asking.returncode in (0, 130, -signal.SIGINT), errors  # at its very end Python lets the signal kill it
    # Python swallows an interrupt that comes within a destructor, and says so; the submission then goes on.
    assert "Traceback" not in errors or errors.startswith("Exception ignored in"), errors
    if not job_ids():
        assert asking.returncode != 130 or "interrupted: no job was submitted" in errors
        place.nothing_left()
        return
    job = Submitted(trainmaster.attach(job_ids()[0]))
    place.jobs.append(job)
    job.run.kill("no more")
    assert job.end(LIMIT)["state"] == "killed"
    place.history_alone(job.id)


def test_what_nodes_have_is_shown_to_who_may_know_it(place: Place) -> None:
    done = place.tm("cluster", "show", "--engine", "kubernetes")
    assert done.returncode == 2, done.stdout
    assert "edit may not list the nodes of the whole cluster" in done.stderr
    shown = place.tm("cluster", "show", "--engine", "kubernetes", KUBECONFIG=place.kubeconfig("admin"))
    assert shown.returncode == 0, shown.stderr
    assert "node-1" in shown.stdout
