"""A cluster as its record has it: its daemons, what its users need, whether it is ready, and its end.

The record, `cluster.json` in the cluster's directory, says with which settings, network and ports it runs and which processes are its
own. It is written before anything starts and after each start.
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
    """A cluster as its record has it."""

    name: str
    place: Place
    settings: Settings
    ready: bool = False
    first: Started = attrs.field(factory=lambda: Started(0, -1))  # that holds the boundary together
    started: dict[str, Started] = attrs.field(factory=dict)
    tokens: dict[str, str] = attrs.field(factory=dict, repr=False)

    @property
    def folder(self) -> Path:
        return self.place.folder

    @property
    def environ(self) -> dict[str, str]:
        """What a program has in its environment to use the cluster, as a user who may `edit` the namespace and no more."""
        return {"KUBECONFIG": str(self.kubeconfig("edit")), "TRAINMASTER_KUBERNETES_IMAGE": images.DEBIAN}

    @property
    def namespace(self) -> str:
        """Where users work; it enforces the Pod Security Standard `restricted`."""
        return conf.NAMESPACE

    @property
    def host_namespace(self) -> str:
        """Where pods may have this machine's files."""
        return api.HOST_NAMESPACE

    @property
    def address(self) -> str:
        """This machine, as pods reach it, and by no other address."""
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
        """running: all daemons live; stopped: none does; broken: else, or its start was broken off."""
        living = sum(one.alive for one in self.started.values())
        if self.ready and living == len(self.names):
            return "running"
        return "broken" if living or not self.ready or self.first.alive else "stopped"

    def daemon(self, name: str) -> Daemon:
        if name not in self.names:
            raise NotFound(f"the cluster has no {name}", place=", ".join(self.names))
        return Daemon(self, name)

    def kubeconfig(self, user: str = "edit") -> Path:
        """The kubeconfig of `admin`, `edit`, `view`, `nobody` (no rights), or `edit-by-certificate`. NotFound of another."""
        path = self.folder / "conf" / f"{user}.kubeconfig"
        if not path.exists():
            users = sorted(one.stem for one in path.parent.glob("*.kubeconfig"))
            raise NotFound(f"the cluster has no user {user}", place=", ".join(users))
        return path

    def kubectl(self, *args: str, user: str = "admin", input: str | None = None) -> str:  # noqa: A002
        """What kubectl says. EngineFailed with its error where it fails."""
        command = [str(self.place.binaries / "hyperkube"), "kubectl", "--kubeconfig", str(self.kubeconfig(user)), *args]
        home = {"HOME": str(self.folder / "tmp")}  # where it keeps what it found out
        done = subprocess.run(
            command, input=input, capture_output=True, text=True, check=False, env={**os.environ, **home}
        )
        if done.returncode != 0:
            raise EngineFailed(f"kubectl {' '.join(args)}: {done.stderr.strip()}", anchor="cluster-failed")
        return done.stdout

    def ask(
        self, method: str, path: str, body: object = None, kind: str = "application/json", user: str = "admin"
    ) -> api.Answer:
        """One request to the API server."""
        return api.ask(self.place, self.tokens[user], method, path, body, kind)

    # -- nodes --

    def processes(self, node: int, uid: str = "") -> list[int]:
        """The processes of a node's pods as this machine numbers them, or of the pod with this uid."""
        return boundary.members(self.place, node, f"pod{uid}" if uid else "")

    def kill_node(self, number: int) -> None:
        """What a node's loss of power is: kubelet, containerd, and all that runs in its pods, killed at once."""
        self.daemon(f"kubelet-{number}").kill()
        self.daemon(f"containerd-{number}").kill()
        shim = conf.socket(number).encode()
        for process in linux.everyone():
            if process.name.startswith("containerd-shim") and shim in _command_of(process.pid):
                linux.send(process.pid, process.start, signal.SIGKILL)
        end = time.monotonic() + daemons.GRACE
        while (left := self.processes(number)) and time.monotonic() < end:
            for process in filter(None, map(linux.look, left)):
                linux.send(process.pid, process.start, signal.SIGKILL)
            time.sleep(_PAUSE)

    def start_node(self, number: int) -> None:
        """Start it again; `wait_ready` waits for it."""
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
        """Give the images of a tar, as `docker save` writes it, to a node; their names. EngineFailed where it is none."""
        command = ["ctr", "-a", conf.socket(number), "-n", "k8s.io", "images", "import", "-"]
        with tar.open("rb") as file:
            said = boundary.run(self.first, command, file.fileno())
        return re.findall(r"^unpacking (\S+) ", said, re.MULTILINE)

    def load_everywhere(self, tar: Path, shown: str) -> list[str]:
        """The same for all real nodes. BadInput where there are none, or where the file `shown` holds no image with a name."""
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

    def start(self, made: tuple[Image, ...]) -> None:
        """Start everything, in a boundary that is open, and return when it serves."""
        with ThreadPoolExecutor(max(1, self.settings.nodes)) as pool:
            for name in self.names:
                if name in _API or name.startswith("containerd"):
                    self.daemon(name).start()
            loading = []
            for number in range(1, self.settings.nodes + 1):
                self._wait_containerd(number)
                self.load(number, made[0].tar)  # what each pod begins with
                loading += [pool.submit(self.load, number, image.tar) for image in made[1:]]
            self._wait_api()
            for name in self.names:
                self.daemon(name).start()
            api.furnish(self.place, self.tokens["admin"], self.settings)
            self.wait_ready()
            for one in loading:
                one.result()

    def revive(self) -> None:
        """Start what of it is dead, and return when it serves."""
        for name in _API:
            self.daemon(name).start()
        self._wait_api()  # others end where it does not know yet what they may
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
        """Return when everything serves. EngineFailed with a daemon's last words as soon as one is dead, or after `limit` seconds."""
        self._wait(
            lambda: (
                api.waits(self.place, self.tokens["admin"], self.settings)
                or self._waits_for_rights()
                or self._waits_for_dns()
            ),
            self.names,
            limit,
        )

    def _waits_for_rights(self) -> str:
        """Say that the user `edit` has no rights yet, "" once it has: the API server is ready before its authorizer knows all bindings."""
        allowed = self.ask("GET", f"/api/v1/namespaces/{self.namespace}/configmaps?limit=1", user="edit").status == 200
        return "" if allowed else "the user edit has no rights yet"

    def _waits_for_dns(self) -> str:
        return "" if not self.settings.nodes or api.serves(self.place.ip, 8181, "/ready") else "the DNS is not ready"

    def _wait(self, waits: Any, names: Iterable[str], limit: float = READY) -> None:
        end = time.monotonic() + limit
        began = time.monotonic()
        while told := waits():
            if dead := [name for name in names if not self.daemon(name).alive]:
                raise self.daemon(dead[0]).failed(f"the {dead[0]} ended", KIND)
            if time.monotonic() > end:
                raise self.daemon("kube-apiserver").failed(f"the cluster was not ready after {limit:g} s: {told}", KIND)
            # Whoever is asked for the state of 1,000 nodes has no time for them meanwhile.
            time.sleep(max(_PAUSE, 2 * (time.monotonic() - began)))
            began = time.monotonic()

    def stop(self, keep: str = "") -> None:
        """End every process of it, and remove its directory, or all in it but `keep`."""
        boundary.close(self.place)
        daemons.remove(self.folder, keep)

    # -- the record --

    def save(self) -> None:
        """Write the record, whole or not at all."""
        record = {
            "settings": self.settings.plain(), "network": self.place.network, "ports": dict(self.place.ports),
            "binaries": str(self.place.binaries), "ready": self.ready, "first": [self.first.pid, self.first.ticks],
            "daemons": {name: [one.pid, one.ticks] for name, one in self.started.items()}, "tokens": self.tokens,
        }  # fmt: skip
        records.write(self.folder, KIND, record)

    @classmethod
    def read(cls, folder: Path) -> Cluster | None:
        """The cluster of a directory, None where there is none of this kind. EngineFailed where its record cannot be understood."""

        def made(record: Mapping[str, Any]) -> Cluster:
            place = Place(folder, Path(record["binaries"]), record["network"], record["ports"])
            started = {name: Started(pid, ticks) for name, (pid, ticks) in record["daemons"].items()}
            settings, first = Settings.of(record["settings"]), Started(*record["first"])
            return cls(folder.name, place, settings, record["ready"], first, started, record["tokens"])

        return records.read(folder, KIND, made)


def _listens(path: str) -> bool:
    """Whether someone answers at a Unix socket: one that was killed leaves its name there."""
    with socket.socket(socket.AF_UNIX) as one:
        return one.connect_ex(path) == 0


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


class Daemon(daemons.Daemon):
    """One daemon of a cluster. What runs in a node's pods goes on where its kubelet is killed: see `Cluster.kill_node`."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.cluster = cluster

    def start(self) -> None:
        """Start it; nothing happens where it lives. Whoever wants it ready asks `cluster.wait_ready()`."""
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
