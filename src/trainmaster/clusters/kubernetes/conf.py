"""The place of a cluster, and the files and command lines of its daemons.

With real nodes all of it is inside a boundary (`boundary`), where every cluster has the same paths and ports: its directory is
`/run/cluster`, the binaries are in `/run/binaries`, and only the network's number tells clusters apart. Node I has an address, a bridge, a
containerd, and a control group of its own. Without real nodes the daemons run directly on this machine, on ports that were free.

The flags are those of Kubernetes 1.33; a flag whose reason is not plain has a comment.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from trainmaster.clusters.kubernetes.images import PAUSE
from trainmaster.clusters.kubernetes.settings import Settings

NAMESPACE = "trainmaster"
PLAIN = -1  # the network's number of a cluster without real nodes
PORTS: Mapping[str, int] = {
    "etcd": 2379, "etcd.peer": 2380, "kube-apiserver": 6443, "kube-controller-manager": 10257, "kube-scheduler": 10259,
}  # fmt: skip
SERVICES, PODS, DNS = "10.96.0.0/16", "10.244.0.0/16", "10.96.0.10"
KUBELET = 10250
_FIRST_SERVICE = "10.96.0.1"
_QUICK = [
    "--kube-api-qps=500",
    "--kube-api-burst=1000",
]  # at the default of 20 a second 1,000 pods take 100 s


@attrs.frozen
class Place:
    """The place of a cluster. `folder` is its directory as this machine sees it, `inside` as its daemons do; `network`: number or PLAIN."""

    folder: Path
    binaries: Path
    network: int
    ports: Mapping[str, int]

    @property
    def plain(self) -> bool:
        return self.network == PLAIN

    @property
    def inside(self) -> Path:
        return self.folder if self.plain else Path("/run/cluster")

    @property
    def bin(self) -> Path:
        return self.binaries if self.plain else Path("/run/binaries")

    def address(self, number: int) -> str:
        """Return an address on the cluster's network, one of those reserved for benchmarks of networks (RFC 2544)."""
        return "127.0.0.1" if self.plain else f"198.{18 + self.network // 256}.{self.network % 256}.{number}"

    @property
    def machine(self) -> str:
        """The address under which pods reach this machine."""
        return self.address(1)

    @property
    def ip(self) -> str:
        """The address of the control plane."""
        return self.address(2)

    def node(self, number: int) -> str:
        return self.address(10 + number)

    @property
    def server(self) -> str:
        return f"https://{self.ip}:{self.ports['kube-apiserver']}"

    @property
    def key(self) -> str:
        """The part by which this cluster's names differ from others on this machine: control groups, the link."""
        return hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]

    def group(self, number: int) -> str:
        """Return the control group of a node's pods."""
        return f"/trainmaster-{self.key}-{number}"

    @property
    def addresses(self) -> list[str]:
        """The addresses of the API server, for its certificate."""
        return [*dict.fromkeys(["127.0.0.1", _FIRST_SERVICE, self.ip])]


def kubeconfig(place: Place, user: str, credentials: Mapping[str, Any], namespace: str = NAMESPACE) -> str:
    """Return a kubeconfig with one context, as JSON, which is YAML."""
    authority = (place.folder / "pki" / "ca.crt").read_text()
    return json.dumps({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": place.folder.name, "cluster": {"server": place.server, "certificate-authority-data": _base64(authority)}}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": place.folder.name, "context": {"cluster": place.folder.name, "user": user, "namespace": namespace}}],
        "current-context": place.folder.name,
    }, indent=1)  # fmt: skip


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def by_certificate(folder: Path, name: str) -> dict[str, str]:
    """Return a user's credentials for a kubeconfig, from the certificate of that name."""
    pki = folder / "pki"
    return {
        "client-certificate-data": _base64((pki / f"{name}.crt").read_text()),
        "client-key-data": _base64((pki / f"{name}.key").read_text()),
    }


def command(place: Place, settings: Settings, name: str) -> list[str]:
    """Return the command that starts a daemon.

    The control plane has priority where root starts them: on a busy machine, the API server was silent for a minute.
    """
    kind, _, number = name.rpartition("-")
    priority = [] if place.plain or name not in CONTROL_PLANE else ["nice", "-n", "-10"]
    if kind == "containerd":
        return ["containerd", "--config", f"{place.inside}/node-{number}/containerd.toml"]
    program = "coredns" if name == "coredns" else "hyperkube"
    arguments = _kubelet_flags(place, int(number)) if kind == "kubelet" else _FLAGS[name](place, settings)
    return [
        *priority,
        str(place.bin / program),
        *(["kubelet" if kind == "kubelet" else name] if program == "hyperkube" else []),
        *arguments,
    ]


def _etcd(place: Place, settings: Settings) -> list[str]:
    pki = place.inside / "pki"
    client, peer = (f"https://127.0.0.1:{place.ports[port]}" for port in ("etcd", "etcd.peer"))
    # etcd knows no users. Without these every process of this machine, and every page of the web, reads and writes all objects.
    closed = [
        flag
        for side in ("", "peer-")
        for flag in (
            f"--{side}cert-file={pki}/etcd.crt", f"--{side}key-file={pki}/etcd.key",
            f"--{side}trusted-ca-file={pki}/etcd-ca.crt", f"--{side}client-cert-auth=true",
        )
    ]  # fmt: skip
    return [
        *closed, "--enable-grpc-gateway=false",
        f"--data-dir={place.inside}/etcd", f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync", "--log-level=warn",
        # etcd keeps this many changes in memory, 100,000 by default: 1 GB was seen after half an hour of large ConfigMaps.
        "--snapshot-count=5000", f"--quota-backend-bytes={8 << 30}",
    ]  # fmt: skip


def _apiserver(place: Place, settings: Settings) -> list[str]:
    pki = place.inside / "pki"
    expiry = ["--default-not-ready-toleration-seconds=2", "--default-unreachable-toleration-seconds=2"]
    return [
        f"--etcd-servers=https://127.0.0.1:{place.ports['etcd']}", f"--etcd-cafile={pki}/etcd-ca.crt",
        f"--etcd-certfile={pki}/etcd.crt", f"--etcd-keyfile={pki}/etcd.key", f"--secure-port={place.ports['kube-apiserver']}",
        *(["--bind-address=127.0.0.1", "--endpoint-reconciler-type=none"] if place.plain else ["--bind-address=0.0.0.0"]),
        f"--advertise-address={place.ip}", f"--service-cluster-ip-range={SERVICES}",
        f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key", f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt", f"--kubelet-client-key={pki}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP", f"--token-auth-file={pki}/tokens.csv",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={pki}/sa.key",
        f"--service-account-signing-key-file={pki}/sa.key", "--allow-privileged=true", f"--cert-dir={pki}/made",
        "--etcd-compaction-interval=2m",
        *(expiry if settings.fast_expiry else []),
    ]  # fmt: skip


def _controllers(place: Place, settings: Settings) -> list[str]:
    pki = place.inside / "pki"
    # By default it evicts one silent node in 10 s, among them nodes that were silent only for a moment, as all are at the start.
    expiry = [
        "--node-monitor-period=1s", "--node-monitor-grace-period=6s", "--node-eviction-rate=100", "--secondary-node-eviction-rate=100",
    ]  # fmt: skip
    return [
        *_as(place, "controller-manager"), f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt", f"--cluster-signing-key-file={pki}/ca.key",
        "--use-service-account-credentials=true", "--allocate-node-cidrs=false", f"--cert-dir={pki}/made", *_QUICK,
        *(expiry if settings.fast_expiry else []),
    ]  # fmt: skip


def _scheduler(place: Place, settings: Settings) -> list[str]:
    return [*_as(place, "scheduler"), f"--cert-dir={place.inside}/pki/made", *_QUICK]


def _as(place: Place, name: str) -> list[str]:
    conf = f"{place.inside}/conf/{name}.kubeconfig"
    return [
        f"--kubeconfig={conf}", f"--authentication-kubeconfig={conf}", f"--authorization-kubeconfig={conf}",
        "--leader-elect=false", "--bind-address=127.0.0.1", f"--secure-port={place.ports[f'kube-{name}']}",
    ]  # fmt: skip


def _kwok(place: Place, settings: Settings) -> list[str]:
    return [
        f"--kubeconfig={place.inside}/conf/admin.kubeconfig", f"--config={place.inside}/conf/stages.yaml",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--node-lease-duration-seconds=40",
        "--cidr=10.200.0.0/16", "--node-port=0",  # without a port kwok starts no server, which would ask nobody for a proof
    ]  # fmt: skip


def _proxy_flags(place: Place, settings: Settings) -> list[str]:
    return [f"--config={place.inside}/conf/proxy.yaml"]


def _coredns(place: Place, settings: Settings) -> list[str]:
    return ["-conf", f"{place.inside}/conf/Corefile"]


def _kubelet_flags(place: Place, number: int) -> list[str]:
    node = f"{place.inside}/node-{number}"
    return [
        f"--config={node}/kubelet.yaml", f"--kubeconfig={place.inside}/conf/node-{number}.kubeconfig", f"--root-dir={node}/kubelet",
        f"--cert-dir={node}/pki", f"--hostname-override=node-{number}", f"--node-ip={place.node(number)}",
    ]  # fmt: skip


CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_FLAGS = {
    "etcd": _etcd,
    "kube-apiserver": _apiserver,
    "kube-controller-manager": _controllers,
    "kube-scheduler": _scheduler,
    "kube-proxy": _proxy_flags,
    "kwok": _kwok,
    "coredns": _coredns,
}


def names(settings: Settings) -> list[str]:
    """Return the daemons, in the order of their start."""
    return [
        *CONTROL_PLANE,
        *(["kube-proxy", "coredns"] if settings.nodes else []), *(["kwok"] if settings.simulated else []),
        *(f"{kind}-{number}" for number in range(1, settings.nodes + 1) for kind in ("containerd", "kubelet")),
    ]  # fmt: skip


# -- files --


def write(place: Place, settings: Settings, tokens: Mapping[str, str], memory: int) -> None:
    """Write all files of the daemons. `memory`: that of this machine, in bytes."""
    conf = place.folder / "conf"
    conf.mkdir(exist_ok=True)
    for user, token in tokens.items():
        _private(conf / f"{user}.kubeconfig", kubeconfig(place, user, {"token": token}))
    _private(conf / "edit-by-certificate.kubeconfig", kubeconfig(place, "edit", by_certificate(place.folder, "edit")))
    (conf / "stages.yaml").write_text(Path(__file__).with_name("stages.yaml").read_text())
    if not settings.nodes:
        return
    (conf / "proxy.yaml").write_text(json.dumps(_proxy(place)))
    (conf / "resolv.conf").write_text(f"nameserver {DNS}\n")
    (conf / "Corefile").write_text(
        f".:1053 {{\n  errors\n  ready 0.0.0.0:8181\n  cache 1\n"
        f"  kubernetes cluster.local . {{\n    kubeconfig {place.inside}/conf/admin.kubeconfig\n    ttl 1\n  }}\n}}\n"
    )
    _write_machine(place, settings)
    for number in range(1, settings.nodes + 1):
        folder = place.folder / f"node-{number}"
        for part in ("kubelet", "pki", "cni", "plugins", "pods"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "kubelet.yaml").write_text(json.dumps(_kubelet(place, settings, number, memory), indent=1))
        (folder / "containerd.toml").write_text(_containerd(place, number))
        (folder / "cni" / "10-bridge.conflist").write_text(json.dumps(_bridge(number), indent=1))


def _private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _write_machine(place: Place, settings: Settings) -> None:
    """Write the cores that kubelets shall see, in the part of /sys that cadvisor reads. Pods see the machine's own.

    Kubelets count the cores of each memory node, and limit pods to the set of all. So cores beyond those of the machine are the same ones
    again, as those of further memory nodes.
    """
    cores = _online()
    for number in range(settings.cores):
        node, core = divmod(number, len(cores))
        topology = place.folder / f"machine/node{node}/cpu{cores[core]}/topology"
        topology.mkdir(parents=True, exist_ok=True)
        (topology / "core_id").write_text(f"{core}\n")
        (topology / "physical_package_id").write_text(f"{node}\n")
        (place.folder / f"machine/node{node}/meminfo").write_text(f"Node {node} MemTotal: {settings.memory << 10} kB\n")


def _online() -> list[int]:
    """Return the numbers of this machine's cores; the kernel writes them as `0-3,6`."""
    spans = [span.split("-") for span in Path("/sys/devices/system/cpu/online").read_text().strip().split(",")]
    return [number for span in spans for number in range(int(span[0]), int(span[-1]) + 1)]


def _proxy(place: Place) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "iptables",
        "clientConnection": {"kubeconfig": f"{place.inside}/conf/proxy.kubeconfig"}, "clusterCIDR": PODS,
        "hostnameOverride": "node-1", "healthzBindAddress": "127.0.0.1:10256", "oomScoreAdj": 0, "iptables": {"minSyncPeriod": "100ms"},
        # The machine's own settings stay as they are.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }  # fmt: skip


_KEPT_FREE = 100 << 20  # bytes of memory below which the kubelet evicts


def _kubelet(place: Place, settings: Settings, number: int, memory: int) -> dict[str, Any]:
    reserved = max(0, memory - (settings.memory << 20) - _KEPT_FREE)
    node = f"{place.inside}/node-{number}"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": place.node(number), "port": KUBELET, "healthzPort": 0, "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": f"{place.inside}/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{socket(number)}",
        "cgroupDriver": "cgroupfs", "cgroupRoot": place.group(number), "failCgroupV1": False, "failSwapOn": False,
        "makeIPTablesUtilChains": False, "oomScoreAdj": 0, "podLogsDir": f"{node}/pods", "volumePluginDir": f"{node}/plugins",
        "clusterDNS": [DNS], "clusterDomain": "cluster.local", "resolvConf": f"{place.inside}/conf/resolv.conf",
        "serializeImagePulls": False, "maxPods": 240, "nodeStatusUpdateFrequency": "4s",
        "systemReserved": {"memory": str(reserved)},
        **({"nodeLeaseDurationSeconds": 4} if settings.fast_expiry else {}),
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": str(_KEPT_FREE), "nodefs.available": "1%", "nodefs.inodesFree": "1%", "imagefs.available": "1%",
        },
    }  # fmt: skip


def socket(number: int) -> str:
    """Return the socket of a node's containerd: a short path, for a socket's path has at most 107 characters."""
    return f"/run/containerd-{number}/containerd.sock"


def _containerd(place: Place, number: int) -> str:
    node = f"{place.inside}/node-{number}"
    return f"""\
version = 2
root = "{node}/containerd"
state = "/run/containerd-{number}"
[grpc]
  address = "{socket(number)}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{node}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true # lowering it wants a right that few have in a container
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def _bridge(number: int) -> dict[str, Any]:
    ranges = [[{"subnet": f"10.244.{number}.0/24"}]]
    bridge = {
        "type": "bridge", "bridge": f"cni{number}", "isGateway": True, "ipMasq": False, "hairpinMode": True,
        "ipam": {
            "type": "host-local", "dataDir": f"/run/cni-{number}", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}],
        },
    }  # fmt: skip
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": f"node-{number}", "plugins": [bridge, ports]}
