"""A Kubernetes cluster with its record: its daemons, what its users need, whether it is ready, and its end.

The record, `cluster.json` in the cluster's directory, has the settings, network and ports with which the cluster runs, and its processes.
It is written before anything starts and after each start.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

from trainmaster.clusters import daemons, records
from trainmaster.clusters.daemons import Started
from trainmaster.clusters.kubernetes import api, boundary, conf, images
from trainmaster.clusters.kubernetes.conf import Place
from trainmaster.clusters.kubernetes.images import Image
from trainmaster.clusters.kubernetes.settings import Settings
from trainmaster.core.errors import BadInput, EngineFailed, NotFound
from trainmaster.host import linux

KIND = "kubernetes"
READY = 120.0  # s that a start may take; 10 are usual
_PAUSE = 0.05
_API = ("etcd", "kube-apiserver")


@attrs.define
class Cluster:
    """A Kubernetes cluster; its fields are those of its record."""

    name: str
    place: Place
    settings: Settings
    ready: bool = False
    first: Started = attrs.field(factory=lambda: Started(0, -1))  # the process that holds the boundary together
    started: dict[str, Started] = attrs.field(factory=dict)
    tokens: dict[str, str] = attrs.field(factory=dict, repr=False)

    @property
    def folder(self) -> Path:
        return self.place.folder

    @property
    def environ(self) -> dict[str, str]:
        """The variables by which a program uses the cluster, as a user who may `edit` the namespace and no more."""
        return {"KUBECONFIG": str(self.kubeconfig("edit")), "TRAINMASTER_KUBERNETES_IMAGE": images.DEBIAN}

    @property
    def namespace(self) -> str:
        """The namespace in which users work; it enforces the Pod Security Standard `restricted`."""
        return conf.NAMESPACE

    @property
    def host_namespace(self) -> str:
        """The namespace in which pods may use this machine's files."""
        return api.HOST_NAMESPACE

    @property
    def address(self) -> str:
        """The only address under which pods reach this machine."""
        return self.place.machine

    @property
    def server(self) -> str:
        return self.place.server

    @property
    def pages(self) -> dict[str, str]:
        """Addresses for people, by daemon."""
        return {"kube-apiserver": self.server}

    @property
    def names(self) -> list[str]:
        """The daemons, in the order of their start."""
        return conf.names(self.settings)

    @property
    def state(self) -> str:
        """`running`: all daemons live; `stopped`: none does; `broken`: only some live, or the start was interrupted."""
        living = sum(process.alive for process in self.started.values())
        if self.ready and living == len(self.names):
            return "running"
        return "broken" if living or not self.ready or self.first.alive else "stopped"

    def daemon(self, name: str) -> Daemon:
        if name not in self.names:
            raise NotFound(f"the cluster has no {name}", place=", ".join(self.names))
        return Daemon(self, name)

    def kubeconfig(self, user: str = "edit") -> Path:
        """Return the kubeconfig of `admin`, `edit`, `view`, `nobody` (no rights), or `edit-by-certificate`. Raises NotFound for others."""
        path = self.folder / "conf" / f"{user}.kubeconfig"
        if not path.exists():
            users = sorted(config.stem for config in path.parent.glob("*.kubeconfig"))
            raise NotFound(f"the cluster has no user {user}", place=", ".join(users))
        return path

    def kubectl(self, *args: str, user: str = "admin", input: str | None = None) -> str:  # noqa: A002
        """Run kubectl and return its output. Raises EngineFailed with its error where it fails."""
        command = [str(self.place.binaries / "hyperkube"), "kubectl", "--kubeconfig", str(self.kubeconfig(user)), *args]
        home = {"HOME": str(self.folder / "tmp")}  # where kubectl keeps its cache
        done = subprocess.run(
            command, input=input, capture_output=True, text=True, check=False, env={**os.environ, **home}
        )
        if done.returncode != 0:
            raise EngineFailed(f"kubectl {' '.join(args)}: {done.stderr.strip()}", anchor="cluster-failed")
        return done.stdout

    def ask(
        self, method: str, path: str, body: object = None, kind: str = "application/json", user: str = "admin"
    ) -> api.Answer:
        """Make one request to the API server."""
        return api.ask(self.place, self.tokens[user], method, path, body, kind)

    # -- nodes --

    def processes(self, node: int, uid: str = "") -> list[int]:
        """Return the processes of a node's pods, or of its pod with this uid, as this machine numbers them."""
        return boundary.members(self.place, node, f"pod{uid}" if uid else "")

    def kill_node(self, number: int) -> None:
        """Kill kubelet, containerd, and all processes of a node's pods at once, as a loss of power does."""
        self.daemon(f"kubelet-{number}").kill()
        self.daemon(f"containerd-{number}").kill()
        shim = conf.socket(number).encode()
        for process in linux.everyone():
            if process.name.startswith("containerd-shim") and shim in _command_line(process.pid):
                linux.send(process.pid, process.start, signal.SIGKILL)
        end = time.monotonic() + daemons.GRACE
        while (pids := self.processes(number)) and time.monotonic() < end:
            for process in filter(None, map(linux.look, pids)):
                linux.send(process.pid, process.start, signal.SIGKILL)
            time.sleep(_PAUSE)

    def start_node(self, number: int) -> None:
        """Start a node again; `wait_ready` waits until it is ready."""
        self.daemon(f"containerd-{number}").start()
        self._wait_containerd(number)
        self.daemon(f"kubelet-{number}").start()

    def _wait_containerd(self, number: int) -> None:
        name, path = f"containerd-{number}", f"/proc/{self.first.pid}/root{conf.socket(number)}"
        end = time.monotonic() + READY
        while not _listens(path):
            if not self.daemon(name).alive or time.monotonic() > end:
                raise self.daemon(name).failed(f"the {name} does not listen", KIND)
            time.sleep(_PAUSE)

    def load(self, number: int, tar: Path) -> list[str]:
        """Load the images of a tar, as `docker save` writes it, into a node; return their names. Raises EngineFailed for other files.

        A kubelet looks for an image by its full name, and an archive may have a short one: the image gets both.
        """
        command = ["ctr", "-a", conf.socket(number), "-n", "k8s.io", "images"]
        with tar.open("rb") as file:
            output = boundary.run(self.first, [*command, "import", "-"], file.fileno())
        names: list[str] = re.findall(r"^unpacking (\S+) ", output, re.MULTILINE)
        for name in names:
            if (full := images.full_name(name)) != name:
                boundary.run(self.first, [*command, "tag", "--force", name, full])
        return names

    def load_everywhere(self, tar: Path, shown: str) -> list[str]:
        """Load the images of a tar into all real nodes; return their names. `shown`: the file's name in messages.

        Raises BadInput where there are no real nodes, or where the file holds no image with a name.
        """
        if not self.settings.nodes or self.state != "running":
            raise BadInput(
                f"cluster {self.name} has no node that runs anything", place=f"--name {self.name}",
                mend="start one: tm cluster up kubernetes", anchor="image-load",
            )  # fmt: skip
        names: list[str] = []
        try:
            for number in range(1, self.settings.nodes + 1):
                names = self.load(number, tar)
        except EngineFailed as error:
            raise BadInput(
                f"containerd does not take it: {str(error).rpartition(': ')[2]}", place=shown,
                mend="save an image: docker save NAME -o FILE", anchor="image-load",
            ) from error  # fmt: skip
        if not names:
            raise BadInput(
                "no image in it has a name", place=shown, mend="save it by its name: docker save NAME -o FILE", anchor="image-load",
            )  # fmt: skip
        return names

    # -- its life --

    def start(self, node_images: tuple[Image, ...]) -> None:
        """Start all daemons, in a boundary that is open, and return when the cluster serves."""
        with ThreadPoolExecutor(max(1, self.settings.nodes)) as pool:
            for name in self.names:
                if name in _API or name.startswith("containerd"):
                    self.daemon(name).start()
            loading = []
            for number in range(1, self.settings.nodes + 1):
                self._wait_containerd(number)
                self.load(number, node_images[0].tar)  # each pod begins with this image
                loading += [pool.submit(self.load, number, image.tar) for image in node_images[1:]]
            self._wait_api()
            for name in self.names:
                self.daemon(name).start()
            api.furnish(self.place, self.tokens["admin"], self.settings)
            self.wait_ready()
            for future in loading:
                future.result()

    def revive(self) -> None:
        """Start the dead daemons, and return when the cluster serves."""
        for name in _API:
            self.daemon(name).start()
        self._wait_api()  # other daemons end while the API server does not know their rights yet
        for name in self.names:
            kind, _, number = name.rpartition("-")
            if kind == "kubelet" and not self.daemon(name).alive:
                self.start_node(int(number))
            else:
                self.daemon(name).start()
        self.wait_ready()

    def _wait_api(self) -> None:
        self._wait(
            lambda: (answer := self.ask("GET", "/readyz")).status != 200 and f"the API server: {answer.said[:200]}",
            _API,
        )

    def wait_ready(self, limit: float = READY) -> None:
        """Return when the whole cluster serves.

        Raises EngineFailed, with a daemon's last words, as soon as one is dead, or after `limit` seconds.
        """
        self._wait(
            lambda: (
                api.waits(self.place, self.tokens["admin"], self.settings)
                or self._waits_for_rights()
                or self._waits_for_dns()
                or self._waits_for_control_plane()
            ),
            self.names,
            limit,
        )

    def _waits_for_rights(self) -> str:
        """Return a message while the user `edit` has no rights, else "". The API server is ready before it knows all bindings."""
        allowed = self.ask("GET", f"/api/v1/namespaces/{self.namespace}/configmaps?limit=1", user="edit").status == 200
        return "" if allowed else "the user edit has no rights yet"

    def _waits_for_dns(self) -> str:
        return "" if not self.settings.nodes or api.serves(self.place.ip, 8181, "/ready") else "the DNS is not ready"

    def _waits_for_control_plane(self) -> str:
        """Return a message while a daemon, which may still end for a fault of its own, does not listen, else ""."""
        for name in ("kube-controller-manager", "kube-scheduler"):
            daemon = self.daemon(name)
            if not (daemon.alive and api.listens(daemon.started.pid, self.place.ports[name])):
                return f"the {name} does not serve yet"
        return ""

    def _wait(self, waits: Any, names: Iterable[str], limit: float = READY) -> None:
        end = time.monotonic() + limit
        began = time.monotonic()
        while lacking := waits():
            if dead := [name for name in names if not self.daemon(name).alive]:
                raise self.daemon(dead[0]).failed(f"the {dead[0]} ended", KIND)
            if time.monotonic() > end:
                raise self.daemon("kube-apiserver").failed(
                    f"the cluster was not ready after {limit:g} s: {lacking}", KIND
                )
            # An API server that lists 1,000 nodes has no time for the nodes meanwhile.
            time.sleep(max(_PAUSE, 2 * (time.monotonic() - began)))
            began = time.monotonic()

    def stop(self, keep: str = "") -> None:
        """End every process of the cluster, and remove its directory, or all in it but `keep`."""
        boundary.close(self.place)
        daemons.remove(self.folder, keep)

    # -- the record --

    def save(self) -> None:
        """Write the record, whole or not at all."""
        record = {
            "settings": self.settings.plain(), "network": self.place.network, "ports": dict(self.place.ports),
            "binaries": str(self.place.binaries), "ready": self.ready, "first": [self.first.pid, self.first.ticks],
            "daemons": {name: [process.pid, process.ticks] for name, process in self.started.items()}, "tokens": self.tokens,
        }  # fmt: skip
        records.write(self.folder, KIND, record)

    @classmethod
    def read(cls, folder: Path) -> Cluster | None:
        """Return the cluster of a directory, None where there is none of this kind.

        Raises EngineFailed where its record cannot be understood.
        """

        def build(record: Mapping[str, Any]) -> Cluster:
            place = Place(folder, Path(record["binaries"]), record["network"], record["ports"])
            started = {name: Started(pid, ticks) for name, (pid, ticks) in record["daemons"].items()}
            settings, first = Settings.of(record["settings"]), Started(*record["first"])
            return cls(folder.name, place, settings, record["ready"], first, started, record["tokens"])

        return records.read(folder, KIND, build)


def _listens(path: str) -> bool:
    """Tell whether a process answers at a Unix socket: one that was killed leaves the socket's file behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


class Daemon(daemons.Daemon):
    """One daemon of a cluster. Programs in a node's pods go on where its kubelet is killed: see `Cluster.kill_node`."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.cluster = cluster

    def start(self) -> None:
        """Start the daemon, unless it lives. It is not ready yet then: see `cluster.wait_ready()`."""
        if self.alive:
            return
        cluster = self.cluster
        command = conf.command(cluster.place, cluster.settings, self.name)
        environ = daemons.environment(cluster.folder, {})
        if cluster.place.plain:
            cluster.started[self.name] = daemons.start(command, cluster.folder, self.log, environ)
        else:
            log = cluster.place.inside / "logs" / self.log.name
            cluster.started[self.name] = boundary.start(cluster.first, command, log, environ)
        cluster.save()
