"""A Hadoop cluster with its record: its daemons, what its clients need, whether it is ready, and its end.

The record, `cluster.json` in the cluster's directory, has the settings and ports with which the cluster runs, and its processes. Everything
else in the directory belongs to the daemons. The record is written before a daemon starts and after each start.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from trainmaster.clusters import daemons, ports, records
from trainmaster.clusters.daemons import Started
from trainmaster.clusters.hadoop import classes, kerberos, pages
from trainmaster.clusters.hadoop.conf import PAGES_CLOSED, Place
from trainmaster.clusters.hadoop.settings import Settings
from trainmaster.core.errors import NotFound

KIND = "hadoop"
READY = 180.0  # s that a start may take; 10 is usual
_PAUSE = 0.1
_HDFS, _YARN = "org.apache.hadoop.hdfs.server.", "org.apache.hadoop.yarn.server."
NAMENODE = f"{_HDFS}namenode.NameNode"
_MAIN = {
    "namenode": NAMENODE,
    "datanode": f"{_HDFS}datanode.DataNode",
    "resourcemanager": f"{_YARN}resourcemanager.ResourceManager",
    "nodemanager": f"{_YARN}nodemanager.NodeManager",
    "zookeeper": "org.apache.zookeeper.server.ZooKeeperServerMain",
}
_FLAGS = [
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    *(  # without the first the daemons of YARN end in guice
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.lang", "java.util", "java.net", "java.util.concurrent", "sun.nio.ch")
    ),
]


@attrs.define
class Cluster:
    """A Hadoop cluster; its fields are those of its record."""

    name: str
    place: Place
    settings: Settings
    java: str
    ready: bool = False
    started: dict[str, Started] = attrs.field(factory=dict)

    @property
    def folder(self) -> Path:
        return self.place.folder

    @property
    def conf_dir(self) -> Path:
        return self.place.conf

    @property
    def environ(self) -> dict[str, str]:
        """The variables by which a program uses the cluster."""
        variables = {"HADOOP_CONF_DIR": str(self.conf_dir), "HADOOP_CLASSPATH": self.place.classpath}
        if self.settings.kerberos:
            variables |= kerberos.environ(self.folder)
            variables["HADOOP_OPTS"] = f"-Djava.security.krb5.conf={variables['KRB5_CONFIG']}"
        return variables

    @property
    def pages(self) -> dict[str, str]:
        """The addresses of the daemons' web pages, by daemon. Those of HDFS have none: the jars lack them."""
        port_of = self.place.ports
        addresses = {name: f"http://localhost:{port_of[f'{name}.http']}" for name in self.resource_managers}
        for number in range(1, self.settings.nodes + 1):
            addresses[f"nodemanager-{number}"] = f"http://{ports.node_address(number)}:{port_of['node.http']}"
        return addresses

    @property
    def names(self) -> list[str]:
        """The daemons, in the order of their start."""
        second = ["zookeeper", "resourcemanager-2"] if self.settings.high_availability else []
        nodes = [f"nodemanager-{number}" for number in range(1, self.settings.nodes + 1)]
        return [
            *(["kdc"] if self.settings.kerberos else []),
            *second,
            "namenode",
            "datanode",
            "resourcemanager",
            *nodes,
        ]

    def daemon(self, name: str) -> Daemon:
        if name not in self.names:
            raise NotFound(f"the cluster has no {name}", place=", ".join(self.names))
        return Daemon(self, name)

    @property
    def state(self) -> str:
        living = sum(process.alive for process in self.started.values())
        if self.ready and living == len(self.names):
            return "running"
        return "broken" if living or not self.ready else "stopped"

    def node_id(self, number: int) -> str:
        """Return YARN's name of node `number`, from 1."""
        return f"{ports.node_address(number)}:{self.place.ports['node']}"

    def keytab(self, user: str) -> Path:
        return kerberos.keytab(self.folder, user)

    def command(self, main: str, *args: str, **properties: str) -> list[str]:
        """Return the command that starts a main class of the cluster's jars; `properties` are those of its JVM."""
        if self.settings.kerberos:
            properties["java.security.krb5.conf"] = kerberos.environ(self.folder)["KRB5_CONFIG"]
        definitions = [f"-D{name}={value}" for name, value in properties.items()]
        path = f"{self.place.jars}/*:{self.conf_dir}"  # the jars first, as the archive of their classes requires
        return [self.java, *self.java_options, *definitions, "-cp", path, main, *args]

    @property
    def java_options(self) -> list[str]:
        return [f"-Xmx{self.settings.heap}m", *_FLAGS, *classes.flags(self.java, self.place.jars)]

    def run(self, main: str, *args: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a main class of Hadoop's as a client of the cluster, for example `org.apache.hadoop.fs.FsShell`."""
        inside = {**os.environ, **self.environ, **(environ or {})}
        return subprocess.run(self.command(main, *args), env=inside, capture_output=True, text=True, check=False)

    def wait_listening(self, name: str, limit: float = READY) -> None:
        """Return when a daemon listens on its first port."""
        end = time.monotonic() + limit
        while not ports.listens(self.place.ports[name]):
            if not self.daemon(name).alive or time.monotonic() > end:
                raise self.daemon(name).failed(f"the {name} does not listen on port {self.place.ports[name]}", KIND)
            time.sleep(_PAUSE)

    def wait_ready(self, limit: float = READY) -> None:
        """Return when every daemon serves.

        Raises EngineFailed, with a daemon's last words, as soon as one is dead, or after `limit` seconds.
        """
        end = time.monotonic() + limit
        while lacking := self._waits():
            if dead := [name for name in self.names if not self.daemon(name).alive]:
                raise self.daemon(dead[0]).failed(f"the {dead[0]} ended", KIND)
            if time.monotonic() > end:
                raise self.daemon("namenode").failed(f"the cluster was not ready after {limit:g} s: {lacking}", KIND)
            time.sleep(_PAUSE)

    def revive(self) -> None:
        """Start the dead daemons, and return when every daemon serves. Raises EngineFailed as `wait_ready` does."""
        for name in self.names:
            self.daemon(name).start()
        self.wait_ready()

    def _waits(self) -> str:
        """Return what the cluster still lacks, "" where it serves."""
        port_of = self.place.ports
        if lacking := pages.namenode_waits(port_of["namenode.http"], self.conf_dir):
            return lacking
        active = max(pages.nodes_active(port_of[f"{name}.http"]) for name in self.resource_managers)
        if active < 0:
            return "the ResourceManager does not answer"
        return "" if active >= self.settings.nodes else f"{active} of {self.settings.nodes} NodeManagers are active"

    @property
    def resource_managers(self) -> list[str]:
        return [name for name in self.names if name.startswith("resourcemanager")]

    @property
    def active(self) -> str:
        """The ResourceManager that serves, "" while none does."""
        for name in self.resource_managers:
            if pages.is_active(self.place.ports[f"{name}.http"]):
                return name
        return ""

    def stop(self, keep: bool = False) -> None:
        """End every process of the cluster; remove its directory unless it is to be kept."""
        daemons.stop(self.started.values(), self.folder)
        if keep:
            self.started = {}
            self.save()
        else:
            daemons.remove(self.folder)

    def save(self) -> None:
        """Write the record, whole or not at all."""
        record = {
            "settings": self.settings.plain(), "ports": dict(self.place.ports), "jars": str(self.place.jars), "java": self.java,
            "user": self.place.user, "ready": self.ready,
            "daemons": {name: [process.pid, process.ticks] for name, process in self.started.items()},
        }  # fmt: skip
        records.write(self.folder, KIND, record)

    @classmethod
    def read(cls, folder: Path) -> Cluster | None:
        """Return the cluster of a directory, None where there is none of this kind.

        Raises EngineFailed where its record cannot be understood.
        """

        def build(record: Mapping[str, Any]) -> Cluster:
            place = Place(folder, record["ports"], Path(record["jars"]), record["user"])
            started = {name: Started(pid, ticks) for name, (pid, ticks) in record["daemons"].items()}
            return cls(folder.name, place, Settings.of(record["settings"]), record["java"], record["ready"], started)

        return records.read(folder, KIND, build)


class Daemon(daemons.Daemon):
    """One daemon of a cluster."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.cluster = cluster

    @property
    def class_list(self) -> Path:
        """The file in which the daemon lists the classes that it loads, while there is no archive of them."""
        return self.cluster.folder / "tmp" / f"{self.name}.classes"

    def start(self) -> None:
        """Start the daemon, unless it lives. It is not ready yet then: see `cluster.wait_ready()`."""
        if self.alive:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        cluster = self.cluster
        own = {PAGES_CLOSED: "false"} if self.name == "namenode" else {}
        environ = {**cluster.environ, **kerberos.kdc_environ(cluster.folder), **own}
        inside = daemons.environment(cluster.folder, environ)
        cluster.started[self.name] = daemons.start(self._command(), cluster.folder, self.log, inside)
        cluster.save()

    def _command(self) -> list[str]:
        cluster, kind, _, number = self.cluster, *self.name.partition("-")
        if kind == "kdc":
            return kerberos.command(cluster.folder)
        arguments: list[str] = []
        properties: dict[str, str] = {}
        if kind == "nodemanager":
            properties = {"nm.id": number, "nm.host": ports.node_address(int(number))}
        elif kind == "resourcemanager" and cluster.settings.high_availability:
            properties = {"rm.id": f"rm{number or 1}"}
        elif kind == "zookeeper":
            properties = {"zookeeper.admin.enableServer": "false", "zookeeper.clientPortAddress": "localhost"}
            arguments = [f"{cluster.folder}/zookeeper.cfg"]
        command = cluster.command(_MAIN[kind], *arguments, **properties)
        if not classes.archive(cluster.java, cluster.place.jars).exists():
            command.insert(1, f"-XX:DumpLoadedClassList={self.class_list}")
        return command
