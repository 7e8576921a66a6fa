"""The pods of a job on a real cluster: what the API server takes, and what a program finds in its container."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import until

from trainmaster.clusters.kubernetes import Cluster
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.kubernetes.names import subdomain_of
from trainmaster.engines.kubernetes.pods.pods import (
    HOME,
    WORK,
    PodBootstrap,
    Shape,
    check,
    master_pod,
    request_of,
    task_pod,
)
from trainmaster.engines.kubernetes.pods.templates import applied, template
from trainmaster.engines.kubernetes.settings import settings
from trainmaster.engines.kubernetes.submit.objects import masters_set, owner_of
from trainmaster.engines.kubernetes.submit.refusals import try_pod
from trainmaster.kube.blocking import Blocking
from trainmaster.kube.client import Client
from trainmaster.kube.config import load
from trainmaster.kube.errors import Forbidden
from trainmaster.kube.kinds import CONFIGMAPS, PODS, REPLICA_SETS, SECRETS, SERVICES

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.full]

LOOK = """
import getpass, json, os, pathlib, socket, sys, tempfile

def writable(path):
    try:
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False

def leads_to(name):
    for _ in range(300):
        try:
            return socket.gethostbyname(name)
        except OSError:
            import time
            time.sleep(0.1)

shm = os.statvfs("/dev/shm")
print(json.dumps({
    "ids": [os.getuid(), os.getgid()], "cwd": os.getcwd(), "home": os.path.expanduser("~"), "user": getpass.getuser(),
    "writable": [path for path in (".", os.path.expanduser("~"), "/tmp", "/dev/shm", "/", "/var/tmp", "/etc") if writable(path)],
    "shm": shm.f_blocks * shm.f_frsize, "token": os.path.exists("/var/run/secrets/kubernetes.io"),
    "services": [name for name in os.environ if name.endswith("_SERVICE_HOST")], "host": socket.gethostname(),
    "args": sys.argv[1:], "said": os.environ.get("SAID"), "node": os.environ.get("NODE"),
    "peer": leads_to(os.environ["PEER"]) if "PEER" in os.environ else None, "ip": socket.gethostbyname(socket.gethostname()),
    "files": {path: pathlib.Path(path).read_text() for path in os.environ.get("FILES", "").split()},
    "memory": os.stat("/memory").st_mode if os.path.exists("/memory") else None,
}))
"""
LAST = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); [signal.pause() for _ in iter(int, 1)]"
STAY = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"


class Place:
    """A job's pods in one namespace, gone at the end."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.job_id = f"pods-{secrets.token_hex(3)}"
        self.client = Blocking(load(path=str(cluster.kubeconfig("edit")), namespace=namespace))
        self.image = cluster.environ["TRAINMASTER_KUBERNETES_IMAGE"]

    def shape(self, said: dict[str, Any] | None = None, role: dict[str, Any] | None = None) -> Shape:
        role = {
            "command": "true",
            "replicas": 2,
            "stop": {"grace": "100s"},
            "resources": {"memory": "64MiB", "cores": 0.1},
            **(role or {}),
        }
        made = job_from({"name": "pods", "roles": {"worker": role}, "engines": {"kubernetes": said or {}}})
        shape = Shape(self.job_id, made, settings(made.engines["kubernetes"]), self.image)
        check(made, shape.settings)
        return shape

    def pod(
        self, program: str, *args: str, said: dict[str, Any] | None = None, role: dict[str, Any] | None = None, index: int = 0,
        serial: int = 1, **env: str,
    ) -> dict[str, Any]:  # fmt: skip
        shape = self.shape(said, role)
        command = ["python3", "-I", "-c", program, *args]
        inside = PodBootstrap(
            [{"name": "runtime", "command": ["sh", "-c", "true"]}], command, [{"name": name, "value": value} for name, value in env.items()]
        )  # fmt: skip
        return task_pod(shape, request_of("worker", shape.job.roles["worker"], index, serial), inside)

    def seen(self, pod: dict[str, Any]) -> dict[str, Any]:
        """What the program of a pod saw; the pod runs to its end."""
        name = self.client.create(PODS, pod, strict=True)["metadata"]["name"]
        ended = until(lambda: self.ended(name), what=lambda: self.client.get(PODS, name)["status"])
        log = self.client.log(name).decode()
        assert ended["status"]["phase"] == "Succeeded", log
        return {**json.loads(log), "on": ended["spec"]["nodeName"]}

    def ended(self, name: str) -> dict[str, Any] | None:
        pod = self.client.get(PODS, name)
        return pod if pod["status"].get("phase") in ("Succeeded", "Failed") else None

    def clear(self) -> None:
        labels = f"trainmaster/job={self.job_id}"
        self.client.delete_all(PODS, labels, grace=0)
        for kind in (CONFIGMAPS, SECRETS, SERVICES):
            for one in self.client.list(kind, labels=labels)[0]:
                self.client.delete(kind, one["metadata"]["name"])
        until(lambda: not self.client.list(PODS, labels=labels)[0])
        self.client.close()

    def address(self, name: str) -> str:
        return str(self.client.get(PODS, name)["status"].get("podIP", ""))

    def running(self, name: str) -> str:
        """Return the address of a pod whose program runs, else "". A pod has its address before its first container begins."""
        return self.address(name) if self.client.get(PODS, name)["status"].get("phase") == "Running" else ""

    def names(self) -> None:
        """The tasks' names. Without `publishNotReadyAddresses`, by which they would lead to pods that are going, or on a lost node, too."""
        headless = {"clusterIP": "None", "selector": {"trainmaster/job": self.job_id}}
        self.client.create(SERVICES, {"metadata": self.meta(subdomain_of(self.job_id)), "spec": headless})

    def meta(self, name: str) -> dict[str, Any]:
        return {"name": name, "labels": {"trainmaster/job": self.job_id}}


@pytest.fixture
def place(kubernetes: Cluster) -> Iterator[Place]:
    """In the namespace that enforces the Pod Security Standard "restricted", as a user bound to `edit`."""
    made = Place(kubernetes, kubernetes.namespace)
    try:
        yield made
    finally:
        made.clear()


@pytest.fixture
def open_place(kubernetes: Cluster) -> Iterator[Place]:
    made = Place(kubernetes, kubernetes.host_namespace)
    try:
        yield made
    finally:
        made.clear()


def test_what_a_program_finds(place: Place) -> None:
    place.names()
    place.client.create(PODS, place.pod(STAY, index=1), strict=True)
    args = ("$(HOME)", "$$", "$HOME", "a$", "$$(HOME)")
    seen = place.seen(place.pod(LOOK, *args, SAID="$(HOME) $$", PEER=f"worker-1.{subdomain_of(place.job_id)}"))
    assert seen["ids"] == [1000, 1000]
    assert (seen["cwd"], seen["home"], seen["user"]) == (WORK, HOME, "trainmaster")
    assert seen["writable"] == [".", HOME, "/tmp", "/dev/shm"], "and nothing of the image"
    assert seen["shm"] == 64 * 2**20, "of a small program as much as a container always has"
    assert (seen["token"], seen["services"]) == (False, ["KUBERNETES_SERVICE_HOST"])
    assert seen["host"] == "worker-0"
    assert (tuple(seen["args"]), seen["said"]) == (args, "$(HOME) $$"), "nothing is expanded"
    peer = place.client.list(PODS, labels=f"trainmaster/job={place.job_id},trainmaster/index=1")[0][0]
    assert seen["peer"] == peer["status"]["podIP"], "tasks have names"


def test_a_tasks_name_leads_to_its_newest_pod(place: Place) -> None:
    place.names()
    running = [place.client.create(PODS, place.pod(LAST, index=1, serial=serial), strict=True) for serial in (1, 2)]
    first, second = [until(lambda name=one["metadata"]["name"]: place.running(name)) for one in running]
    place.client.delete(PODS, running[0]["metadata"]["name"])
    program = f"""
import json, socket, time
def found():
    try:
        return sorted({{one[4][0] for one in socket.getaddrinfo("worker-1.{subdomain_of(place.job_id)}", 80)}})
    except OSError:
        return []
end = time.monotonic() + 60
while found() != ["{second}"] and time.monotonic() < end:
    time.sleep(0.1)
print(json.dumps({{"found": found()}}))
"""
    assert place.seen(place.pod(program))["found"] == [second]
    assert place.address(running[0]["metadata"]["name"]) == first, "the other one is still going"


def test_what_is_mounted(place: Place) -> None:
    name = place.job_id
    place.client.create(CONFIGMAPS, {"metadata": place.meta(name), "data": {"a": "of a map", "b": "left out"}})
    place.client.create(SECRETS, {"metadata": place.meta(name), "stringData": {"key": "of a secret"}})
    said = {
        "volumes": [
            {"config_map": {"name": name, "items": {"a": "sub/a"}}, "path": "/map"},
            {"secret": {"name": name, "mode": "0440"}, "path": "/secret"},
            {"empty": {"memory": True, "size": "1MiB"}, "path": "/memory"}, {"config_map": name, "path": "/one/b", "sub_path": "b"},
        ],
        "shm": "32MiB",
    }  # fmt: skip
    seen = place.seen(place.pod(LOOK, said=said, FILES="/map/sub/a /secret/key /one/b"))
    assert seen["files"] == {"/map/sub/a": "of a map", "/secret/key": "of a secret", "/one/b": "left out"}
    assert seen["memory"] is not None
    assert seen["shm"] == 32 * 2**20


def test_a_pod_keeps_off_excluded_nodes_and_has_its_accelerator(place: Place, kubernetes: Cluster) -> None:
    nodes = kubernetes.kubectl("get", "nodes", "-l", "type!=kwok", "-o", "name").split()
    names = [one.removeprefix("node/") for one in nodes]
    role = {"nodes": {"exclude": names[1:]}, "resources": {"memory": "64MiB", "cores": 0.1, "gpus": 1}}
    assert place.seen(place.pod(LOOK, role=role))["on"] == names[0]
    role = {"nodes": {"exclude": names[:-1]}}
    said = {"pod": {"spec": {"affinity": {"$patch": "replace"}}}}
    assert place.seen(place.pod(LOOK, role=role, said=said, serial=2))["on"] == names[-1]


def test_root_is_refused_where_the_namespace_is_restricted(place: Place, open_place: Place) -> None:
    root = {"run_as": {"user": 0}}
    with pytest.raises(Forbidden, match="runAsNonRoot"):
        place.client.create(PODS, place.pod(LOOK, said=root), strict=True)
    said = {**root, "volumes": [{"host_path": "/etc", "path": "/of-the-node", "read_only": True}]}
    seen = open_place.seen(open_place.pod(LOOK, said=said, FILES="/of-the-node/hostname"))
    assert seen["ids"] == [0, 0]
    assert seen["files"]["/of-the-node/hostname"]


TAKEN: list[dict[str, Any]] = [
    {},
    {"run_as": "image", "limit_cores": True, "pull": "always", "pull_secrets": ["registry"], "shm": "none"},
    {"node_selector": {"a": "b"}, "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
     "labels": {"team": "x"}, "annotations": {"example.org/a": "any: text"}},
    {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kubernetes.io/hostname"}]}}},
    {"volumes": [{"claim": "c", "path": "/p", "sub_path": "s"}]},
    {"volumes": [{"ephemeral": {"size": "1GiB", "storage_class": "fast"}, "path": "/e"}, {"empty": "1GiB", "path": "/tmp"}]},
    {"queue": "q"}, {"volcano": "q"},
    {"pod": {"spec": {
        "containers": [{"name": "side", "image": "side:1"}, {"name": "program", "ports": [{"containerPort": 80}]}],
        "initContainers": [{"name": "beside", "image": "side:1", "restartPolicy": "Always"}],
        "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]}}},
]  # fmt: skip


@pytest.mark.parametrize("said", TAKEN, ids=lambda said: "-".join(said) or "nothing")
def test_what_is_said_is_taken_where_pods_are_restricted(place: Place, said: dict[str, Any]) -> None:
    role = {"nodes": {"exclude": ["n1", "n2"]}, "resources": {"gpus": 1, "extended": {"example.org/thing": 2}}}
    made = place.client.create(PODS, place.pod(LOOK, said=said, role=role), dry_run=True, strict=True)
    assert made["status"]["phase"] == "Pending"
    shape = place.shape(said, role)
    template = master_pod(shape, PodBootstrap([{"name": "runtime"}], ["true"]), "trainer")
    made = masters_set(place.job_id, owner_of(place.job_id, "1"), template)
    place.client.create(REPLICA_SETS, made, dry_run=True, strict=True)


@pytest.mark.parametrize(
    "source",
    [{"host_path": "/data", "type": "Directory"}, {"nfs": "files.example.org:/data"}],
    ids=lambda one: next(iter(one)),
)
def test_volumes_of_nodes_are_taken_where_pods_are_not(place: Place, open_place: Place, source: dict[str, Any]) -> None:
    said = {"volumes": [{**source, "path": "/data"}]}
    open_place.client.create(PODS, open_place.pod(LOOK, said=said), dry_run=True, strict=True)
    with pytest.raises(Forbidden, match="restricted volume types"):
        place.client.create(PODS, place.pod(LOOK, said=said), dry_run=True)


REFUSED: list[tuple[dict[str, Any], str, str]] = [  # settings, the key that is named, words of the server
    ({"pod": {"spec": {"tolerationz": []}}}, "pod.spec.tolerationz", "unknown field"),
    ({"pod": {"spec": {"hostNetwork": "yes"}}}, "pod.spec.hostNetwork", "of type bool"),
    ({"pod": {"spec": {"activeDeadlineSeconds": True}}}, "pod.spec.activeDeadlineSeconds", "of type int64"),
    ({"pod": {"spec": {"$setElementOrder/containers": []}}}, "pod.spec.$setElementOrder/containers", "unknown field"),
    ({"pod": {"spec": {"dnsPolicy": "Odd"}}}, "pod.spec.dnsPolicy", "Unsupported value"),
    ({"pod": {"metadata": {"lables": {}}}}, "pod.metadata.lables", "unknown field"),
    ({"pod": {"spec": {"containers": [{"name": "program", "envs": []}]}}}, "pod.spec.containers[program].envs", "unknown field"),
    ({"pod": {"spec": {"containers": [{"name": "program", "securityContext": {"readOnly": True}}]}}},
     "pod.spec.containers[program].securityContext.readOnly", "unknown field"),
    ({"pod": {"spec": {"containers": [{"name": "program", "env": [{"name": "A", "value": 3}]}]}}}, "pod.spec.containers.env.value",
     "of type string"),
    ({"pod": {"spec": {"containers": [{"name": "program", "volumeMounts": [{"mountPath": "/v", "name": "v"}]}]}}},
     "pod.spec.containers[program].volumeMounts[/v].name", 'Not found: "v"'),
    ({"pod": {"spec": {"containers": [{"name": "Side", "image": "i"}]}}}, "pod.spec.containers[Side].name", "lowercase RFC 1123"),
    ({"pod": {"spec": {"containers": [{"name": "side", "image": "i", "resources": {"requests": {"cpu": "1 core"}}}]}}},
     "pod.spec.containers[side].resources.requests.cpu", "quantities"),
    ({"pod": {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1GB"}}]}}}, "pod.spec.volumes[tmp].emptyDir.sizeLimit",
     "quantities"),
    ({"tolerations": [{"effct": "NoSchedule"}]}, "tolerations", "effct"),
    ({"tolerations": [{"key": "a", "operator": "Exists", "effect": "Never"}]}, "tolerations", '"NoSchedule"'),
    ({"affinity": {"nodeAfinity": {}}}, "affinity", "nodeAfinity"),
    ({"volumes": [{"empty": True, "path": "/a", "name": "work"}]}, "volumes", "Duplicate value"),
    ({"volumes": [{"ephemeral": {"size": "1GiB", "mode": "x"}, "path": "/a"}]}, "volumes", '"ReadWriteMany"'),
    ({"roles": {"worker": {"volumes": [{"host_path": "/a", "path": "/a", "type": "Dir"}]}}}, "roles.worker.volumes", "DirectoryOrCreate"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "key", "words"), REFUSED, ids=[key for _, key, _ in REFUSED])
def test_what_the_server_refuses_is_told_by_the_key_of_the_job(
    open_place: Place, said: dict[str, Any], key: str, words: str
) -> None:
    async def try_it() -> None:
        async with Client(open_place.client.config) as client:
            await try_pod(client, open_place.shape(said), "worker", open_place.pod(LOOK, said=said))

    with pytest.raises(BadInput) as refusal:
        asyncio.run(try_it())
    assert refusal.value.place == f"engines.kubernetes.{key}"
    assert words in refusal.value.message


def test_a_part_of_a_role_has_a_class(place: Place, kubernetes: Cluster) -> None:
    classes = {f"{place.job_id}-high": 1000, f"{place.job_id}-low": 10}
    try:
        for name, value in classes.items():
            kubernetes.kubectl("create", "priorityclass", name, f"--value={value}")
        high, low = classes
        said = {"priority_class": {"worker": {"class": high, "fraction": 0.5, "other": low}}}
        made = [
            place.client.create(PODS, place.pod(LOOK, said=said, index=index), dry_run=True, strict=True)
            for index in range(2)
        ]
        assert [one["spec"]["priority"] for one in made] == [1000, 10]
    finally:
        kubernetes.kubectl("delete", "priorityclass", "--ignore-not-found", *classes)


PATCHES: list[dict[str, Any]] = [
    {"metadata": {"labels": {"a": "b"}, "annotations": {"x": None}, "finalizers": ["example.org/a"]}},
    {"spec": {"tolerations": [{"key": "b", "operator": "Exists"}], "nodeSelector": {"b": "c"}}},
    {"spec": {"nodeSelector": {"$patch": "replace", "z": "1"}}},
    {"spec": {"nodeSelector": None, "imagePullSecrets": [{"name": "two"}], "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}]}},
    {"spec": {"containers": [{"name": "program", "env": [{"name": "HOME", "value": "x"}, {"name": "NEW", "value": "y"}],
                              "volumeMounts": [{"mountPath": "/tmp", "name": "user"}], "args": ["1", "2"],
                              "securityContext": {"capabilities": {"drop": ["A"]}}}]}},
    {"spec": {"containers": [{"name": "side", "image": "s"}, {"name": "program", "ports": [{"containerPort": 1}]}]}},
    {"spec": {"containers": [{"name": "program", "$patch": "delete"}, {"name": "other", "image": "o"}]}},
    {"spec": {"initContainers": [{"$patch": "replace"}, {"name": "mine", "image": "m"}]}},
    {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "shm", "$patch": "delete"},
                          {"name": "new", "secret": {"secretName": "s"}}]}},
    {"spec": {"securityContext": {"runAsUser": 5, "supplementalGroups": [1, 2]},
              "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}]}},
    {"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]}}}},
]  # fmt: skip


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: json.dumps(patch)[:60])
def test_templates_are_merged_as_kubectl_does_it(place: Place, patch: dict[str, Any]) -> None:
    said = {"node_selector": {"a": "b"}, "tolerations": [{"key": "a", "operator": "Exists"}], "pull_secrets": ["one"]}
    pod = place.pod(LOOK, said=said)
    pod["metadata"]["finalizers"] = ["example.org/b"]
    theirs = place.cluster.kubectl(
        "patch",
        "--local",
        "--type",
        "strategic",
        "-f",
        "-",
        "-p",
        json.dumps(patch),
        "-o",
        "json",
        input=json.dumps(pod),
    )
    assert sorted_by_name(applied(pod, template(patch, "pod"))) == sorted_by_name(json.loads(theirs))


def sorted_by_name(value: Any) -> Any:
    """Lists in one order, empty things left out: kubectl writes what Go's types leave empty."""
    if isinstance(value, dict):
        made = {name: sorted_by_name(one) for name, one in value.items()}
        return {name: one for name, one in made.items() if one not in (None, {}, [])}
    if isinstance(value, list):
        return sorted((sorted_by_name(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    return value


def test_memory_beyond_the_limit_is_out_of_memory(place: Place) -> None:
    pod = place.pod("held = b'x' * (600 << 20)")
    name = place.client.create(PODS, pod, strict=True)["metadata"]["name"]
    ended = until(lambda: place.ended(name))
    (state,) = [one["state"] for one in ended["status"]["containerStatuses"] if one["name"] == "program"]
    assert state["terminated"]["reason"] == "OOMKilled"
