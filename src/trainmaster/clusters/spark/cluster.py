"""A standalone Spark cluster with its record: its daemons, what its clients need, whether it is ready, and its end.

The record, `cluster.json` in the cluster's directory, has the settings and ports with which the cluster runs, and its processes. It is
written before a daemon starts and after each start. Its directory also has:

    conf/       spark-defaults.conf, for the daemons and for applications; log4j2.properties; the scripts that name devices
    logs/       the output of each daemon
    recovery/   the master's workers and applications: a master that is killed and started again goes on with them
    worker-1/   the directories of the worker's executors, with their stdout and stderr

Worker N has the address 127.0.0.N+1, so that Spark takes the workers for different hosts. Executors inherit the environment of their
worker, and with it the cluster's mark (see `clusters.daemons`), so they end with the cluster.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from trainmaster.clusters import daemons, ports, records
from trainmaster.clusters.daemons import Started
from trainmaster.clusters.spark.settings import Settings
from trainmaster.core.errors import NotFound
from trainmaster.engines.spark.home import Home

KIND = "spark"
READY = 180.0  # s that a start may take; 5 to 20 are usual
OFFSETS = {"master": 7, "master.http": 8, "worker": 11, "worker.http": 13}
_DEPLOY = "org.apache.spark.deploy."
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true"
_PAUSE = 0.1
_ANSWER_WITHIN = 5.0  # s
_LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n%ex
"""


@attrs.frozen
class Place:
    """The place of a cluster: its directory, and its ports by name."""

    folder: Path
    ports: Mapping[str, int]


@attrs.define
class Cluster:
    """A Spark cluster; its fields are those of its record."""

    name: str
    place: Place
    settings: Settings
    home: Home
    ready: bool = False
    started: dict[str, Started] = attrs.field(factory=dict)

    @property
    def folder(self) -> Path:
        return self.place.folder

    @property
    def conf_dir(self) -> Path:
        return self.folder / "conf"

    @property
    def url(self) -> str:
        """The master's address, as applications name it."""
        return f"spark://localhost:{self.place.ports['master']}"

    @property
    def hint(self) -> str:
        """Tell how a job runs on the cluster."""
        return (
            f"run a job on it there: tm run job.yaml --engine spark; elsewhere its engines.spark.master is {self.url}"
        )

    @property
    def environ(self) -> dict[str, str]:
        """The variables by which a program uses the cluster. The driver and its page listen on this machine's loopback address alone."""
        return {
            "SPARK_HOME": str(self.home.folder),
            "SPARK_CONF_DIR": str(self.conf_dir),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": self.home.python,
            "PYSPARK_DRIVER_PYTHON": self.home.python,
        }

    @property
    def pages(self) -> dict[str, str]:
        """The addresses of the daemons' web pages, by daemon."""
        port_of = self.place.ports
        numbers = range(1, self.settings.nodes + 1)
        workers = {
            f"worker-{number}": f"http://{ports.node_address(number)}:{port_of['worker.http']}" for number in numbers
        }
        return {"master": f"http://localhost:{port_of['master.http']}", **workers}

    @property
    def names(self) -> list[str]:
        """The daemons, in the order of their start."""
        return ["master", *(f"worker-{number}" for number in range(1, self.settings.nodes + 1))]

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

    def report(self) -> dict[str, Any] | None:
        """Return the master's own report: its workers and applications; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.pages['master']}/json/", timeout=_ANSWER_WITHIN) as reply:
                report: dict[str, Any] = json.load(reply)
        except (OSError, ValueError):
            return None
        return report

    def write_conf(self) -> None:
        """Write the directory of configuration anew, and forget what a former master knew."""
        self.conf_dir.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.folder / "recovery", ignore_errors=True)
        properties: dict[str, object] = {
            "spark.master": self.url,
            "spark.authenticate": "true",  # else every user of this machine could run anything as ours
            "spark.authenticate.secret": secrets.token_hex(32),
            "spark.master.rest.enabled": "false",  # on by default in Spark 4; whoever reaches it can run anything
            "spark.ui.killEnabled": "false",  # whoever reaches a page could end jobs, pages of the web among them
            "spark.master.ui.decommission.allow.mode": "DENY",  # and workers
            "spark.worker.timeout": max(1, round(self.settings.node_expiry)),
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": self.folder / "recovery",
            "spark.local.dir": self.folder / "tmp",
        }
        for resource, count in self.settings.resources.items():
            script = self.conf_dir / f"devices-{resource}"
            devices = {"name": resource, "addresses": [str(number) for number in range(count)]}
            script.write_text(f"#!/bin/sh\necho '{json.dumps(devices)}'\n")
            script.chmod(0o755)
            properties[f"spark.worker.resource.{resource}.amount"] = count
            properties[f"spark.worker.resource.{resource}.discoveryScript"] = script
        properties |= self.settings.properties
        lines = [f"{name} {value}\n" for name, value in properties.items()]
        defaults = self.conf_dir / "spark-defaults.conf"
        defaults.unlink(missing_ok=True)
        defaults.touch(0o600)
        defaults.write_text("".join(lines))
        (self.conf_dir / "log4j2.properties").write_text(_LOG4J)

    def wait_ready(self, limit: float = READY) -> None:
        """Return when the master has all workers.

        Raises EngineFailed, with a daemon's last words, as soon as one is dead, or after `limit` seconds.
        """
        end = time.monotonic() + limit
        while lacking := self._lacking():
            if dead := [self.daemon(name) for name in self.names if not self.daemon(name).alive]:
                names = " and ".join(daemon.name for daemon in dead)
                raise dead[0].failed(f"the {names} ended", KIND)
            if time.monotonic() > end:
                raise self.daemon("master").failed(f"the cluster was not ready after {limit:g} s: {lacking}", KIND)
            time.sleep(_PAUSE)

    def revive(self) -> None:
        """Start the dead daemons, and return when the master has all workers. Raises EngineFailed as `wait_ready` does."""
        for name in self.names:
            self.daemon(name).start()
        self.wait_ready()

    def _lacking(self) -> str:
        """Return what the cluster still lacks, "" where it serves."""
        report = self.report()
        if report is None:
            return "the master does not answer"
        if report["status"] != "ALIVE":
            return f"the master is {report['status']}"
        alive = {worker["host"] for worker in report["workers"] if worker["state"] == "ALIVE"}
        return (
            "" if len(alive) >= self.settings.nodes else f"{len(alive)} of {self.settings.nodes} workers are registered"
        )

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
            "settings": self.settings.plain(), "ports": dict(self.place.ports), "home": str(self.home.folder),
            "spark": self.home.version, "ready": self.ready,
            "daemons": {name: [process.pid, process.ticks] for name, process in self.started.items()},
        }  # fmt: skip
        records.write(self.folder, KIND, record)

    @classmethod
    def read(cls, folder: Path) -> Cluster | None:
        """Return the cluster of a directory, None where there is none of this kind.

        Raises EngineFailed where its record cannot be understood.
        """

        def build(record: Mapping[str, Any]) -> Cluster:
            started = {name: Started(pid, ticks) for name, (pid, ticks) in record["daemons"].items()}
            home = Home(Path(record["home"]), record["spark"])
            return cls(
                folder.name,
                Place(folder, record["ports"]),
                Settings.of(record["settings"]),
                home,
                record["ready"],
                started,
            )

        return records.read(folder, KIND, build)


class Daemon(daemons.Daemon):
    """One daemon of a cluster."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.cluster = cluster

    def start(self) -> None:
        """Start the daemon, unless it lives. It is not ready yet then: see `cluster.wait_ready()`."""
        if self.alive:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        cluster = self.cluster
        inside = daemons.environment(cluster.folder, {
            "SPARK_HOME": str(cluster.home.folder), "SPARK_CONF_DIR": str(cluster.conf_dir),
            "SPARK_LOCAL_IP": self._address,  # else pages listen on all addresses
            "SPARK_DAEMON_MEMORY": f"{cluster.settings.heap}m", "SPARK_DAEMON_JAVA_OPTS": _JAVA_OPTIONS,
        })  # fmt: skip
        cluster.started[self.name] = daemons.start(self._command(), cluster.folder, self.log, inside)
        cluster.save()

    @property
    def _address(self) -> str:
        kind, _, number = self.name.partition("-")
        return ports.node_address(int(number)) if kind == "worker" else "127.0.0.1"

    def _command(self) -> list[str]:
        cluster, port_of = self.cluster, self.cluster.place.ports
        if self.name == "master":
            listening = [
                "--host",
                "localhost",
                "--port",
                str(port_of["master"]),
                "--webui-port",
                str(port_of["master.http"]),
            ]
            return [cluster.home.spark_class, f"{_DEPLOY}master.Master", *listening]
        settings, folder = cluster.settings, cluster.folder / self.name
        return [
            cluster.home.spark_class, f"{_DEPLOY}worker.Worker",
            "--host", self._address, "--port", str(port_of["worker"]), "--webui-port", str(port_of["worker.http"]),
            "--cores", str(settings.cores), "--memory", f"{settings.memory}m", "--work-dir", str(folder), cluster.url,
        ]  # fmt: skip
