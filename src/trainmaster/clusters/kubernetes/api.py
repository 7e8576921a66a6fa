"""Requests to a cluster's API server as its administrator: readiness, nodes, and the objects that a new cluster gets."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

from trainmaster.clusters.kubernetes.conf import DNS, NAMESPACE, Place
from trainmaster.clusters.kubernetes.settings import Settings
from trainmaster.core.errors import EngineFailed
from trainmaster.engines.kubernetes.submit.rights import granted
from trainmaster.kube.kinds import ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS

HOST_NAMESPACE = f"{NAMESPACE}-host"
_TIMEOUT = 10.0  # s
_LIFECYCLE = tuple(
    f"node.kubernetes.io/{state}" for state in ("not-ready", "unreachable", "network-unavailable")
)  # taints
_LISTEN = "0A"  # net/tcp_states.h
_AT_ONCE = 16
_PEOPLE = {"edit": "edit", "view": "view"}  # user -> the stock role it has in both namespaces


@attrs.frozen
class Answer:
    """An answer of the API server. `status` 0: there was no answer; `said` has the error."""

    status: int
    said: str

    @property
    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.said)
        return content


def ask(
    place: Place, token: str, method: str, path: str, body: object = None, kind: str = "application/json"
) -> Answer:
    """Make one request, as the user of the token."""
    try:
        context = ssl.create_default_context(cafile=str(place.folder / "pki" / "ca.crt"))
        connection = http.client.HTTPSConnection(
            place.ip, place.ports["kube-apiserver"], timeout=_TIMEOUT, context=context
        )
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode())
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, str(error))


def waits(place: Place, token: str, settings: Settings) -> str:
    """Return what the cluster still lacks, "" where it serves."""
    ready = ask(place, token, "GET", "/readyz")
    if ready.status != 200:
        return f"the API server is not ready: {ready.said.strip()[:300] or ready.status}"
    for namespace in (NAMESPACE, HOST_NAMESPACE):
        if ask(place, token, "GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default").status != 200:
            return f"there is no namespace {namespace} with its service account yet"
    answer = ask(place, token, "GET", "/api/v1/nodes")
    if answer.status != 200:
        return f"the nodes cannot be listed: {answer.said[:300]}"
    nodes = {node["metadata"]["name"]: node for node in answer.json["items"]}
    unready = sorted(set(names_of_nodes(settings)) - {name for name, node in nodes.items() if takes_pods(node)})
    if unready:
        return f"{len(unready)} nodes are not ready: {', '.join(unready[:3])}"
    for node in names_of_nodes(settings)[: settings.nodes]:
        offered = nodes[node]["status"]["allocatable"]
        if lacking := [name for name, count in settings.resources.items() if offered.get(name) != str(count)]:
            furnish_node(place, token, node, settings.resources)
            return f"{node} does not offer {lacking[0]} yet"
    return ""


def takes_pods(node: Mapping[str, Any]) -> bool:
    """Tell whether pods are scheduled to the node: it keeps the taint `not-ready` for a moment after its kubelet has called it ready."""
    conditions = node.get("status", {}).get("conditions", [])
    tainted = any(taint["key"] in _LIFECYCLE for taint in node.get("spec", {}).get("taints") or ())
    return not tainted and any(row["type"] == "Ready" and row["status"] == "True" for row in conditions)


def names_of_nodes(settings: Settings) -> list[str]:
    """Return the names of the nodes, those that run containers first."""
    real = [f"node-{number}" for number in range(1, settings.nodes + 1)]
    return [*real, *(f"simulated-{number}" for number in range(1, settings.simulated + 1))]


def furnish_node(place: Place, token: str, name: str, resources: Mapping[str, int]) -> None:
    """Make a node offer resources. Its kubelet keeps them until it restarts."""
    counted = {resource: str(count) for resource, count in resources.items()}
    body = {"status": {"capacity": counted, "allocatable": counted}}
    ask(place, token, "PATCH", f"/api/v1/nodes/{name}/status", body, "application/strategic-merge-patch+json")


def furnish(place: Place, token: str, settings: Settings) -> None:
    """Create the objects that users expect: namespaces, rights, DNS, simulated nodes. Existing ones stay as they are."""

    def create(row: tuple[str, dict[str, Any]]) -> None:
        path, manifest = row
        answer = ask(place, token, "POST", path, manifest)
        if answer.status not in (200, 201, 409):
            raise EngineFailed(
                f"{manifest['kind']} {manifest['metadata']['name']} could not be made: {answer.said[:500]}",
                anchor="cluster-failed",
            )

    for row in (*_namespaces(), *_rights(), *(_dns(place) if settings.nodes else [])):
        create(row)
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # creating a node takes a while, and there may be many
        list(pool.map(create, _simulated(settings)))


_Manifests = list[tuple[str, dict[str, Any]]]  # path of the collection, object


def _namespaces() -> _Manifests:
    """Return the namespaces: the first enforces the strictest Pod Security Standard, pods of the second may use this machine's files."""
    level = "pod-security.kubernetes.io/enforce"
    return [
        (
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {level: standard}}},
        )
        for name, standard in ((NAMESPACE, "restricted"), (HOST_NAMESPACE, "privileged"))
    ]


def _rights() -> _Manifests:
    """Return the users' rights, and the account of jobs' masters, which an administrator applies once."""
    api = "rbac.authorization.k8s.io"
    applied = [
        (kind.path(namespace), manifest)
        for namespace in (NAMESPACE, HOST_NAMESPACE)
        for kind, manifest in zip((SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS), granted(namespace), strict=True)
    ]
    return applied + [
        (
            f"/apis/{api}/v1/namespaces/{namespace}/rolebindings",
            {
                "apiVersion": f"{api}/v1", "kind": "RoleBinding", "metadata": {"name": user, "namespace": namespace},
                "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": api, "kind": "User", "name": user}],
            },
        )
        for namespace in (NAMESPACE, HOST_NAMESPACE)
        for user, role in _PEOPLE.items()
    ]  # fmt: skip


def _dns(place: Place) -> _Manifests:
    """Return a Service that leads from the pods' network to CoreDNS, which is not a pod."""
    ports = [("dns", "UDP"), ("dns-tcp", "TCP")]
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {
            "clusterIP": DNS,
            "ports": [{"name": name, "port": 53, "targetPort": 1053, "protocol": protocol} for name, protocol in ports],
        },
    }  # fmt: skip
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": "kube-dns", "namespace": "kube-system", "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "endpoints": [{"addresses": [place.ip], "conditions": {"ready": True}}],
        "ports": [{"name": name, "port": 1053, "protocol": protocol} for name, protocol in ports],
    }  # fmt: skip
    return [
        ("/api/v1/namespaces/kube-system/services", service),
        ("/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", slice_),
    ]


def _simulated(settings: Settings) -> _Manifests:
    """Return the simulated nodes. A label and a taint set them apart: only pods that tolerate the taint get there."""
    offered = {
        "cpu": str(settings.cores), "memory": f"{settings.memory}Mi", "pods": "110",
        **{name: str(count) for name, count in settings.resources.items()},
    }  # fmt: skip
    taints = [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}] if settings.nodes else []
    return [
        (
            "/api/v1/nodes",
            {
                "apiVersion": "v1", "kind": "Node",
                "metadata": {
                    "name": name, "annotations": {"kwok.x-k8s.io/node": "fake"},
                    "labels": {
                        "type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                    },
                },
                "spec": {"taints": taints},
                "status": {"capacity": offered, "allocatable": offered},
            },
        )
        for name in names_of_nodes(settings)[settings.nodes :]
    ]  # fmt: skip


def listens(pid: int, port: int) -> bool:
    """Tell whether a process's network has a listening TCP socket at a port (proc_pid_net(5))."""
    for family in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]
        except OSError:
            continue
        for _, local, _, state, *_ in (line.split() for line in lines):
            if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                return True
    return False


def serves(address: str, port: int, path: str) -> bool:
    """Tell whether a server answers with status 200, in plain HTTP."""
    try:
        connection = http.client.HTTPConnection(address, port, timeout=1.0)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return False
