"""A real Kubernetes on this machine: it comes up with what was asked for, survives the loss of daemons and nodes, and leaves nothing."""

from __future__ import annotations

import base64
import ctypes
import http.client
import http.server
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import listening
import pytest
import waiting
from another_user import as_another_user
from kubernetes import GPU, SHARED, host_volumes, own_kubernetes

from trainmaster.clusters import daemons
from trainmaster.clusters import kubernetes as kubernetes_clusters
from trainmaster.clusters.kubernetes import Cluster, Settings, boundary, images
from trainmaster.clusters.kubernetes.conf import PLAIN, Place
from trainmaster.core.errors import EngineFailed

pytestmark = pytest.mark.xdist_group("kubernetes")
SOAK = pytest.mark.soak  # what takes long and differs little from what does not

LIMIT = 120.0  # s that pods and nodes may take
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65534,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def tm(*words: str, group: str = "cluster", **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainmaster.cli", group, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def pod(name: str, program: str, node: int = 0, **of_container: Any) -> dict[str, Any]:
    """A pod that runs a Python program."""
    container = {
        "name": "program", "image": images.DEBIAN, "command": ["python3", "-c", program], "securityContext": RESTRICTED, **of_container,
    }  # fmt: skip
    spec: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    if node:
        spec["nodeName"] = f"node-{node}"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"test": "cluster"}}, "spec": spec}


@contextmanager
def there(cluster: Cluster, *things: dict[str, Any], namespace: str = "") -> Iterator[None]:
    """Objects that are in the cluster meanwhile, made by a user who may `edit`."""
    words = ["-n", namespace or cluster.namespace, "-f", "-"]
    told = json.dumps({"apiVersion": "v1", "kind": "List", "items": things})
    try:
        cluster.kubectl("create", *words, user="edit", input=told)
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "--force", "--grace-period=0", *words, input=told)


def status(cluster: Cluster, name: str, namespace: str = "") -> dict[str, Any]:
    answer = cluster.ask("GET", f"/api/v1/namespaces/{namespace or cluster.namespace}/pods/{name}")
    return answer.json.get("status", {}) if answer.status == 200 else {}


def ended(cluster: Cluster, name: str, namespace: str = "") -> str:
    """What a pod wrote, once it has ended, which it must do well."""
    waiting.until(
        lambda: status(cluster, name, namespace).get("phase") in ("Succeeded", "Failed"), LIMIT,
        what=lambda: status(cluster, name, namespace),
    )  # fmt: skip
    said = cluster.kubectl("-n", namespace or cluster.namespace, "logs", name)
    assert status(cluster, name, namespace)["phase"] == "Succeeded", said
    return said


def runs(cluster: Cluster, name: str) -> bool:
    return status(cluster, name).get("phase") == "Running"


def traces(folder: Path) -> dict[str, Any]:
    """What the cluster in `folder` could leave on this machine. Others may come and go meanwhile: their links and groups are theirs."""
    sysctls = (
        "net/ipv4/ip_forward", "vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
        "kernel/keys/root_maxbytes",
    )  # fmt: skip

    def said(*command: str) -> list[str]:
        path = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
        told = subprocess.run(command, capture_output=True, text=True, check=True, env=path).stdout
        return sorted(line for line in told.splitlines() if "tmkube" not in line and not line.startswith(("#", ":")))

    return {
        "mounts": sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "links": [line.split()[1] for line in said("ip", "-o", "link")],
        "routes": said("ip", "route", "show", "table", "all"),
        "rules": said("iptables-save"),
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in sysctls},
        "groups": boundary.groups(Place(folder, folder, PLAIN, {})),
        "places": sorted(
            path for path in ("/var/lib/kubelet", "/var/lib/cni", "/run/containerd") if Path(path).exists()
        ),
        "processes": daemons.marked(folder),
    }


def own_link(cluster: Cluster) -> Path:
    return Path("/sys/class/net", boundary.link(cluster.place.network))


# -- the shared one --


def test_it_has_the_nodes_and_resources_asked_for(kubernetes: Cluster) -> None:
    nodes = {node["metadata"]["name"]: node for node in kubernetes.ask("GET", "/api/v1/nodes").json["items"]}
    assert len(nodes) == SHARED.nodes + SHARED.simulated
    for name in ("node-1", "node-2", "simulated-20"):
        offered = nodes[name]["status"]["allocatable"]
        assert {key: offered[key] for key in ("cpu", GPU)} == {"cpu": "8", GPU: "2"}
        assert offered["memory"] in ("4Gi", "4096Mi")
    assert "taints" not in nodes["node-1"]["spec"]
    assert nodes["simulated-1"]["spec"]["taints"]


def test_pods_see_each_other_by_name_and_this_machine_and_nothing_else(kubernetes: Cluster) -> None:
    server = http.server.ThreadingHTTPServer((kubernetes.address, 0), http.server.BaseHTTPRequestHandler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    reach = f"""
import os, socket, threading, time, urllib.error, urllib.request
listener = socket.create_server(("", 7000))
def serve():
    while True:
        peer, address = listener.accept()
        peer.sendall(address[0].encode())
        peer.close()
threading.Thread(target=serve, daemon=True).start()
while True:
    try:
        peer = socket.create_connection((os.environ["OTHER"], 7000), timeout=1)
        break
    except OSError:
        time.sleep(0.05)
assert peer.recv(99).decode() == peer.getsockname()[0], "seen under its own address"
try:
    urllib.request.urlopen("http://{kubernetes.address}:{server.server_port}/")
except urllib.error.HTTPError as answer:
    print("machine", answer.code)
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    print("elsewhere", error.strerror)
open("/tmp/done", "w").close()
while True:
    time.sleep(1)
"""
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "peers"},
        "spec": {"clusterIP": "None", "selector": {"test": "cluster"}, "publishNotReadyAddresses": True},
    }  # fmt: skip
    pods = []
    for name, other, node in (("one", "two", 1), ("two", "one", 2)):
        environ = [{"name": "OTHER", "value": f"{other}.peers"}, {"name": "PYTHONUNBUFFERED", "value": "1"}]
        made = pod(name, reach, node, env=environ, volumeMounts=[{"name": "tmp", "mountPath": "/tmp"}])
        made["spec"] |= {"hostname": name, "subdomain": "peers", "volumes": [{"name": "tmp", "emptyDir": {}}]}
        pods.append(made)
    wanted = "machine 501\nelsewhere Network is unreachable\n"
    try:
        with there(kubernetes, service, *pods):
            for name in ("one", "two"):
                waiting.until(lambda name=name: runs(kubernetes, name), LIMIT)
                waiting.until(lambda name=name: kubernetes.kubectl("logs", name, user="edit") == wanted, LIMIT)
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def test_a_user_may_edit_and_no_more_and_pods_are_held_to_the_standard(kubernetes: Cluster) -> None:
    refused = pod("refused", "")
    del refused["spec"]["containers"][0]["securityContext"]
    with pytest.raises(EngineFailed, match="violates PodSecurity"), there(kubernetes, refused):
        pass
    pods = f"/api/v1/namespaces/{kubernetes.namespace}/pods"
    for user, read, made in (("edit", 200, 201), ("view", 200, 403), ("nobody", 403, 403)):
        assert kubernetes.ask("GET", pods, user=user).status == read
        assert kubernetes.ask("POST", f"{pods}?dryRun=All", pod("tried", ""), user=user).status == made
    assert kubernetes.kubectl("auth", "can-i", "create", "pods", user="edit-by-certificate") == "yes\n"
    assert kubernetes.ask("GET", "/api/v1/nodes", user="edit").status == 403


def test_pods_may_have_this_machines_python_in_the_other_namespace(kubernetes: Cluster) -> None:
    volumes, mounts = host_volumes()
    program = "import sys, attrs; print(sys.version_info[:2], attrs.__name__)"
    made = pod("host", program, 1, image=images.HOST, command=[sys.executable, "-c", program], volumeMounts=mounts)
    made["spec"]["volumes"] = volumes
    with there(kubernetes, made, namespace=kubernetes.host_namespace):
        assert ended(kubernetes, "host", kubernetes.host_namespace) == f"{sys.version_info[:2]} attrs\n"


ALL_SECRETS = {
    "key": base64.b64encode(b"/registry/secrets/").decode(),
    "range_end": base64.b64encode(b"/registry/secrets0").decode(),
}
ATTACKS = [
    *(("GET", path) for path in (
        "/", "/metrics", "/configz", "/debug/pprof/", "/debug/flags/v", "/members", "/v2/keys/", "/pods", "/api/v1/secrets",
        "/containerLogs/a/b/c", "/logs/",
    )),
    *(("POST", path) for path in ("/v3/kv/range", "/v3/kv/put", "/run/a/b/c", "/api/v1/namespaces/default/pods")),
]  # fmt: skip
DNS_PORT = 1053
REFUSED = {0, 400, 401, 403, 404}  # 0: no answer, for a handshake of TLS that failed, or for HTTP where TLS is wanted


def statuses(address: str, port: int) -> dict[str, int]:
    """Return the status of each attack by a stranger: by HTTP, as a page of the web, and by HTTPS."""
    found = {}
    for scheme, (method, path) in ((scheme, attack) for scheme in ("http", "https") for attack in ATTACKS):
        anybody = ssl._create_unverified_context()
        connection = (
            http.client.HTTPSConnection(address, port, timeout=30, context=anybody)
            if scheme == "https"
            else http.client.HTTPConnection(address, port, timeout=30)
        )
        headers = {"Content-Type": "text/plain", "Origin": "http://evil.example", "Host": "evil.example"}
        try:
            connection.request(method, path, json.dumps(ALL_SECRETS), headers)
            found[f"{method} {scheme} {path}"] = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            found[f"{method} {scheme} {path}"] = 0
        finally:
            connection.close()
    return found


@pytest.mark.full
def test_a_stranger_gets_nothing_at_any_port_of_simulated_nodes() -> None:
    """The daemons listen on this machine, where other users and pages of the web reach them."""
    with own_kubernetes(Settings(nodes=0, simulated=1)) as cluster:
        ports_of = {name: listening.ports(process.pid) for name, process in cluster.started.items()}
        assert sorted(port for ports in ports_of.values() for port in ports) == sorted(cluster.place.ports.values())
        for name, ports in ports_of.items():
            for port in ports:
                answers = as_another_user(lambda port=port: statuses("127.0.0.1", port))
                assert set(answers.values()) <= ({0, 400} if name == "etcd" else REFUSED), (name, answers)


@pytest.mark.full
def test_a_stranger_gets_nothing_at_any_port_of_real_nodes(kubernetes: Cluster) -> None:
    """Neither another user of this machine, nor one on the network of the control plane, as pods of the host's network are."""
    addresses = [kubernetes.place.ip, *(kubernetes.place.node(number) for number in (1, 2))]
    ports = {port for process in kubernetes.started.values() for port in listening.ports(process.pid)}
    assert {DNS_PORT, 6443, 10250} <= ports
    for address in addresses:
        for port in ports - {DNS_PORT}:  # it reads on, whatever comes
            answers = as_another_user(lambda address=address, port=port: statuses(address, port))
            assert set(answers.values()) <= REFUSED, (address, port, answers)
    with ThreadPoolExecutor(1) as thread:
        for port in (2379, 2380):
            answers = thread.submit(from_inside, kubernetes, port).result()
            assert set(answers.values()) <= {0, 400}, (port, answers)


def from_inside(cluster: Cluster, port: int) -> dict[str, int]:
    """Return what a stranger gets at the control plane's loopback address. The calling thread stays on that network."""
    with open(f"/proc/{cluster.first.pid}/ns/net") as network:
        assert ctypes.CDLL(None).setns(network.fileno(), 0) == 0
    found: dict[str, int] = as_another_user(lambda: statuses("127.0.0.1", port))
    return found


@pytest.mark.full
def test_a_node_that_dies_is_noticed_in_seconds_and_comes_back(kubernetes: Cluster) -> None:
    with there(kubernetes, pod("lives", "import time; time.sleep(600)", 2)):
        waiting.until(lambda: runs(kubernetes, "lives"), LIMIT)
        found = kubernetes.ask("GET", f"/api/v1/namespaces/{kubernetes.namespace}/pods/lives").json
        assert len(kubernetes.processes(2, found["metadata"]["uid"])) == 2  # its program, and pause
        kubernetes.kill_node(2)
        assert kubernetes.processes(2) == []
        assert kubernetes.state == "broken"
        waiting.until(
            lambda: any(one["type"] == "DisruptionTarget" for one in status(kubernetes, "lives")["conditions"]), LIMIT
        )
        kubernetes.start_node(2)
        kubernetes.wait_ready()
        assert kubernetes.state == "running"
        waiting.until(lambda: not status(kubernetes, "lives"), LIMIT)  # only now is it known to have ended


@pytest.mark.full
@SOAK
def test_what_daemons_leave_running_is_found_again_by_their_next_start(kubernetes: Cluster) -> None:
    with there(kubernetes, pod("lives", "import time; time.sleep(600)", 1)):
        waiting.until(lambda: runs(kubernetes, "lives"), LIMIT)
        began = status(kubernetes, "lives")["containerStatuses"][0]["containerID"]
        for name in ("etcd", "kube-apiserver", "kubelet-1", "kube-scheduler", "kube-controller-manager"):
            kubernetes.daemon(name).kill()
        kubernetes.revive()
        assert runs(kubernetes, "lives")
        assert status(kubernetes, "lives")["containerStatuses"][0]["containerID"] == began


@pytest.mark.full
def test_a_daemon_that_ended_is_named_with_its_last_words(kubernetes: Cluster) -> None:
    kubernetes.daemon("etcd").kill()
    with kubernetes.daemon("etcd").log.open("a") as log:
        log.write("no room left\n")
    with pytest.raises(EngineFailed) as failed:
        kubernetes.wait_ready()
    assert "the etcd ended" in failed.value.message
    assert "no room left" in failed.value.message


# -- one's own --


@pytest.fixture
def named() -> Iterator[str]:
    """The name of a cluster of the test's own, ended whatever happens."""
    try:
        yield "own"
    finally:
        kubernetes_clusters.down("own")


@pytest.mark.full
def test_its_life_from_the_command_line_and_the_machine_is_as_before(named: str) -> None:
    folder = kubernetes_clusters.folder_of(named)
    before = traces(folder)
    done = tm("up", "kubernetes", "--name", named, "--nodes", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["began"] is True
    again = tm("up", "kubernetes", "--name", named, "--nodes", "1")
    assert again.stdout.startswith(f"the cluster {named} runs already"), again.stderr
    assert "other settings" in tm("up", "kubernetes", "--name", named).stderr
    assert "is of kind kubernetes, not hadoop" in tm("down", "hadoop", "--name", named).stderr
    (told,) = json.loads(tm("status", "--json").stdout)
    assert told["state"] == "running"
    assert all(daemon["alive"] and daemon["memory"] > 0 for daemon in told["daemons"])
    exports = tm("env", "kubernetes", "--name", named).stdout
    told_to_shell = subprocess.run(
        ["sh", "-c", f'{exports}echo "$KUBECONFIG $TRAINMASTER_KUBERNETES_IMAGE"'],
        capture_output=True,
        text=True,
        check=True,
    )
    cluster = kubernetes_clusters.find(named)
    assert told_to_shell.stdout.split() == [str(cluster.kubeconfig("edit")), images.DEBIAN]

    (tar,) = (str(image.tar) for image in images.images() if image.name == images.HOST)
    assert tm("load", tar, "--name", named, group="image").stdout == f"loaded {images.HOST}\n"
    refused = tm("load", __file__, "--name", named, group="image")
    assert (refused.returncode, refused.stderr.count("containerd does not take it")) == (2, 1), refused.stderr

    cluster.daemon("kube-apiserver").kill()
    assert tm("status").returncode == 1
    assert "starting what is dead" in tm("up", "kubernetes", "--name", named, "--nodes", "1").stderr
    assert tm("status").returncode == 0
    with there(cluster, pod("lives", "import time; time.sleep(600)")):
        waiting.until(lambda: runs(cluster, "lives"), LIMIT)
    assert "is down" in tm("down", "kubernetes", "--name", named).stdout
    assert not folder.exists()
    assert not own_link(cluster).exists()
    assert traces(folder) == before
    assert "there is no cluster" in tm("down", "kubernetes", "--name", named).stdout


@pytest.mark.full
@pytest.mark.parametrize(("moment", "number"), [
    ("boundary", signal.SIGTERM), ("kube-apiserver", signal.SIGINT), pytest.param("kubelet-1", signal.SIGTERM, marks=SOAK),
])  # fmt: skip
def test_a_start_that_is_broken_off_leaves_nothing(named: str, moment: str, number: int) -> None:
    folder = kubernetes_clusters.folder_of(named)
    before = traces(folder)
    log = folder / "logs" / f"{moment}.log"
    command = [sys.executable, "-m", "trainmaster.cli", "cluster", "up", "kubernetes", "--name", named]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as starting:
        waiting.until(log.exists, LIMIT)
        starting.send_signal(number)
        assert starting.wait(waiting.LIMIT) == 128 + number
    assert not folder.exists()
    assert traces(folder) == before


@pytest.mark.full
@pytest.mark.parametrize("moment", ["boundary", pytest.param("kubelet-2", marks=SOAK), "running"])
def test_a_start_that_is_killed_is_cleaned_up_by_the_end(named: str, moment: str) -> None:
    folder = kubernetes_clusters.folder_of(named)
    before = traces(folder)
    log = folder / "logs" / f"{moment}.log"
    command = [sys.executable, "-m", "trainmaster.cli", "cluster", "up", "kubernetes", "--name", named]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as starting:
        waiting.until(lambda: log.exists() or starting.poll() is not None, LIMIT)
        if moment != "running":
            starting.kill()
    if moment == "running":  # and then whatever a machine's loss of memory could take
        cluster = kubernetes_clusters.find(named)
        for name in ("kube-apiserver", "containerd-1"):
            cluster.daemon(name).kill()
        (cluster.folder / "cluster.json").write_text("{")
    assert tm("down", "kubernetes", "--name", named).returncode == 0
    assert traces(folder) == before


@pytest.mark.full
@SOAK
def test_two_run_side_by_side_and_one_ends_alone(kubernetes: Cluster) -> None:
    with own_kubernetes(Settings(nodes=1)) as other:
        assert other.address != kubernetes.address
        with there(other, pod("here", "print('here')")), there(kubernetes, pod("here", "print('there')", 1)):
            assert ended(other, "here") == "here\n"
            assert ended(kubernetes, "here") == "there\n"
        other.stop()
        kubernetes.wait_ready()
        assert kubernetes.state == "running"


@pytest.mark.full
def test_simulated_nodes_alone_need_no_root(tmp_path: Path) -> None:
    """Nodes that only say that they run pods, for whoever has neither root nor containerd."""
    place = tmp_path / "plain"
    place.mkdir()
    os.chown(place, 65534, 65534)
    program = (
        "import sys; from pathlib import Path; from trainmaster.clusters import kubernetes as k;"
        "folder = Path(sys.argv[1]); done = k.up(k.Settings(nodes=0, simulated=30), folder=folder) if sys.argv[2] == 'up'"
        " else k.down(folder=folder)"
    )
    environ = {**os.environ, "XDG_CACHE_HOME": str(kubernetes_clusters.binaries.binaries().parent.parent)}
    words = [sys.executable, "-c", program, str(place / "cluster")]
    try:
        _as_nobody([*words, "up"], environ)
        cluster = Cluster.read(place / "cluster")
        assert cluster is not None
        path = f"/api/v1/namespaces/{cluster.namespace}/pods"
        assert cluster.ask("POST", path, pod("fake", ""), user="edit").status == 201
        waiting.until(lambda: runs(cluster, "fake"), LIMIT)
        assert status(cluster, "fake")["podIP"].startswith("10.200.")
    finally:
        _as_nobody([*words, "down"], environ)
    assert not (place / "cluster").exists()


def _as_nobody(command: list[str], environ: dict[str, str]) -> None:
    """As a user with no right but to read all, for this Python and what was built may be in root's home."""
    rights = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *rights, "--"]
    done = subprocess.run([*as_nobody, *command], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_a_daemon_that_cannot_start_is_told_at_once(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = kubernetes_clusters.conf._FLAGS
    monkeypatch.setitem(flags, "kube-scheduler", lambda place, settings: ["--no-such-flag"])
    with pytest.raises(EngineFailed, match=r"the kube-scheduler ended(?s:.*)unknown flag: --no-such-flag"):
        kubernetes_clusters.up(Settings(nodes=1), named)
    folder = kubernetes_clusters.folder_of(named)
    assert [path.name for path in folder.iterdir()] == ["logs"]
    assert daemons.marked(folder) == []
