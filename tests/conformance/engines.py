"""The engines on which the conformance suite runs, each a row of `ENGINES`, and what a test sees of a job: what its user sees.

A row says how an engine is set up and taken down, where data lies that programs and nodes reach (`place`, `put`, `files`), and what it
cannot have (`lacks`): a test says by `@pytest.mark.needs(NAME)` what it is about, and is not there on an engine that lacks it; the end of
a run tells each. All else goes through the Python API and the `tm` command, which are the same for every engine. Jobs ask for little, so
that several fit on any machine.

Wherever programs run, `engine.folder / "go"` is a file that they see: the nodes of the clusters that tests start are this machine, and a
program that waits for a file is how a test holds it up. A program's own data never goes that way.

On a cluster a job takes seconds, so its runs of most tests are `full`; `@pytest.mark.brief` says which are short everywhere.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hadoop import Cluster, revived
from waiting import until

import trainmaster
from trainmaster.client.jobs.past import Past
from trainmaster.core.errors import TrainmasterError
from trainmaster.host import linux

LIMIT = 400.0  # s for a job to end, some of which import whole frameworks; reached by a failure alone
SMALL = {"cores": 0.05, "memory": "64MiB"}
TM = str(Path(sys.executable).parent / "tm")


def python(program: str) -> list[str]:
    """A Python program as a command."""
    return [sys.executable, "-u", "-c", textwrap.dedent(program)]


def role(command: str | Sequence[str], replicas: Any = 1, **keys: Any) -> dict[str, Any]:
    """A role of small tasks."""
    return {"command": command, "replicas": replicas, "resources": SMALL, **keys}


def workers(command: str | Sequence[str], replicas: Any = 1, **keys: Any) -> dict[str, Any]:
    """The roles of a job that has workers alone."""
    return {"worker": role(command, replicas, **keys)}


@attrs.define
class Submitted:
    """A job as its user sees it."""

    run: trainmaster.Run

    @property
    def id(self) -> str:
        return self.run.id

    def end(self, limit: float = LIMIT) -> dict[str, Any]:
        """Its final status, once it has ended."""
        try:
            return self.run.wait(limit, check=False)
        except TimeoutError:
            told = "\n".join(str(event) for event in self.events()[-30:])
            raise AssertionError(f"{self.id} has not ended after {limit} s: {self.run.status()}\n{told}") from None

    def succeeded(self, limit: float = LIMIT) -> dict[str, Any]:
        status = self.end(limit)
        assert status["state"] == "succeeded", self.story(status)
        assert status["gave_up"] == [], self.story(status)
        return status

    def failed(self, reason: str, limit: float = LIMIT) -> dict[str, Any]:
        """Its final status, which must be a failure for this reason; returns the reason as told."""
        status = self.end(limit)
        assert status["state"] == "failed", self.story(status)
        assert status["reason"]["reason"] == reason, self.story(status)
        assert status["gave_up"] == [], self.story(status)
        return dict(status["reason"])

    def story(self, status: Mapping[str, Any]) -> str:
        """All that helps to see why a test failed."""
        lines = [f"{status['state']}: {status['reason']}", *(str(task) for task in status["tasks"])]
        return "\n".join([*lines, *(str(event) for event in self.events()), *self.run.logs()])

    def status(self) -> dict[str, Any]:
        return self.run.status()

    def events(self) -> list[dict[str, Any]]:
        return list(self.run.events())

    def told(self, kind: str) -> list[dict[str, Any]]:
        """Its events of one type."""
        return [event for event in self.events() if event["type"] == kind]

    def task(self, key: str) -> dict[str, Any]:
        return next(task for task in self.run.status()["tasks"] if task["task"] == key)

    def lines(self, task: str = "worker:0", attempt: int | None = None) -> list[str]:
        """What a task printed."""
        return list(self.run.logs(task, attempt))

    def until_line(self, wanted: str, task: str = "worker:0") -> None:
        """Wait until a task has printed this."""

        def printed() -> bool:
            try:
                return any(wanted in line for line in self.lines(task))
            except TrainmasterError:  # nothing of the job is there yet
                return False

        until(printed, LIMIT, what=lambda: f"{wanted!r} of {task}; {self.said()}")

    def said(self) -> str:
        """What there is to say of it where a test waits in vain: of one that its cluster has ended the second look says why."""
        self.run.status()
        try:
            words = self.lines("master")[-30:]
        except TrainmasterError as error:
            words = [str(error)]
        return "\n".join([f"{self.id} is {self.run.status()}; the master's last words:", *words])

    def until_status(self, what: str, condition: Any, limit: float = LIMIT) -> dict[str, Any]:
        """Wait for a condition on the status; returns that status."""

        def found() -> dict[str, Any] | None:
            try:
                status = self.run.status()
            except TrainmasterError:  # nothing of the job is there yet
                return None
            return status if condition(status) else None

        got: dict[str, Any] | None = until(found, limit, what=lambda: f"{what}; {self.said()}")
        assert got is not None
        return got

    @property
    def storage(self) -> Path:
        """What this machine keeps of it; on `local` that is all."""
        return Path(os.environ["TRAINMASTER_STATE_DIR"]) / "jobs" / self.id

    def stored(self, name: str) -> bytes:
        """A file of its storage, wherever that is."""
        return self._kept().read(name) or b""

    def entries(self, name: str) -> list[str]:
        """The names in a folder of its storage."""
        return [entry.name for entry in self._kept().entries(name)]

    def _kept(self) -> Any:
        from trainmaster.log.documents.jobs import place_of
        from trainmaster.log.storage import storage_for

        return storage_for(place_of(self.storage))

    def attempt(self, number: int, task: str = "worker:0") -> dict[str, Any]:
        """The event that tells of an attempt's start; its pid is of this machine, where all nodes of tests are."""

        def told() -> dict[str, Any] | None:
            of = (task, number)
            return next((event for event in self.told("started") if (event["task"], event["attempt"]) == of), None)

        found: dict[str, Any] = until(told, LIMIT, what=f"attempt {number} of {task} starts")
        return found


class Engine:
    """What every row offers."""

    name = ""
    nodes = 1
    interface = "lo"  # of its containers, by which they reach each other
    lacks: ClassVar[Mapping[str, str]] = {}  # what a test may need -> why it is not to be had here

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # the submitter's directory
        self.jobs: list[Submitted] = []

    def submit(self, roles: Mapping[str, Any], key: str = "", **keys: Any) -> Submitted:
        """Start a job; relative paths are below `folder`."""
        job = {"name": "t", "roles": roles, **self.own(), **keys}
        made = Submitted(trainmaster.submit(job, engine=self.name, directory=self.folder, idempotency_key=key))
        self.jobs.append(made)
        return made

    def tm(self, *arguments: str, limit: float = LIMIT, **more: Any) -> subprocess.CompletedProcess[str]:
        """A command of the submitter, to its end."""
        return subprocess.run(
            [TM, *arguments], cwd=self.folder, capture_output=True, timeout=limit, check=False, **{"text": True, **more}
        )

    def write(self, name: str, content: str | bytes) -> Path:
        """A file of the submitter."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def place(self, name: str) -> str:
        """The URL of a place that programs and nodes reach; it is empty at first."""
        return name

    def put(self, name: str, content: str | bytes) -> None:
        """A file at `place(name)`."""
        self.write(name, content)

    def files(self, name: str) -> dict[str, bytes]:
        """Every file below `place(name)`."""
        root = self.folder / name
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def remove(self, name: str) -> None:
        """Remove a file at `place(name)`."""
        (self.folder / name).unlink()

    def command_lines(self, made: Submitted) -> list[str]:
        """Those of a job's processes."""
        found = [Path(f"/proc/{one.process.pid}/cmdline").read_bytes() for one in processes_of(made.id)]
        return [line.decode(errors="replace") for line in found]

    def process(self, made: Submitted, number: int = 1, task: str = "worker:0") -> int:
        """The process of an attempt's program, as this machine numbers it."""
        return int(made.attempt(number, task)["pid"])

    def kill_master(self, made: Submitted) -> None:
        """Kill the process of the job's master."""
        raise NotImplementedError(self.name)

    def kill_node(self, node: str) -> None:
        """Have a node fall silent, by the name that events give it; what runs there may run on. `revive` brings it back."""
        raise NotImplementedError(self.name)

    def revive(self) -> None:
        """Start again what of the cluster was killed."""

    def own(self) -> dict[str, Any]:
        """Keys that every job needs on this engine."""
        return {}

    def share(self, name: str, place: Path) -> None:
        """Have all tests of a run share what is at `place`: it is made once a run, not once a test."""
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shared = self.folder.parent.parent / name
        shared.mkdir(exist_ok=True)
        if not place.exists():
            place.symlink_to(shared)

    def close(self) -> None:
        """Take everything down; fails where a job left something that the engine can see."""


class Local(Engine):
    """This machine."""

    name = "local"
    lacks: ClassVar = {
        "network": "tasks on one machine reach each other by 127.0.0.1",
        "nodes": "this machine is one node: there is no other, none can be lost, none has a label",
        "application": "nobody but the job's own master and its user ends it: there is no ResourceManager",
    }

    def kill_master(self, made: Submitted) -> None:
        (master,) = [mark for mark in processes_of(made.id) if mark.kind == "master"]
        os.kill(master.process.pid, signal.SIGKILL)

    def close(self) -> None:
        from trainmaster.host.limits import ancestry

        for made in self.jobs:
            self._end(made)
        groups = [entry.name for folder in ancestry("memory") for entry in folder.iterdir()]
        left = [name for name in groups for made in self.jobs if name.startswith(f"trainmaster-{made.id}")]
        assert not left, f"left control groups behind: {left}"

    def _end(self, made: Submitted) -> None:
        """End a job that a failed test has left running."""
        from trainmaster.engines.local.client import LocalClient
        from trainmaster.engines.local.sweep import sweep

        past = Past(made.id)
        end = time.monotonic() + 10
        while processes_of(made.id) and time.monotonic() < end:
            try:
                if past.state().ended is None:
                    break
            except TrainmasterError:
                break
        if processes_of(made.id):
            LocalClient().end(made.id)
            sweep()


class Yarn(Engine):
    """A Hadoop cluster: two nodes, HDFS. `close` looks for what a job has left in YARN and in processes, whatever its environment."""

    name = "yarn"
    nodes = 2
    lacks: ClassVar = {
        "submitters-place": "a task has a directory, an environment and limits of its own: it finds nothing of its submitter's",
        "local-master": "master and agents are processes of nodes, without sockets, ledger or control groups of this machine",
        "local-data": "inputs, outputs and storage are where every node reaches them: a path of the submitter's is refused",
        "parquet-streams": "an agent, which reads streams, has no pyarrow there: Parquet is read as shards",
        "only-engine": "what is tried is not of an engine, and is tried on one",
    }

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.root = f"/tmp/tests-{uuid.uuid4().hex[:12]}"
        self.share("runtime", Path(os.environ["TRAINMASTER_STATE_DIR"], "runtime"))

    def place(self, name: str) -> str:
        return f"hdfs://{self.root}/{name}"

    def put(self, name: str, content: str | bytes) -> None:
        self._store().put(name, content.encode() if isinstance(content, str) else content)

    def files(self, name: str) -> dict[str, bytes]:
        from trainmaster.data.store.stores import store_for

        store = store_for(self.place(name))
        return {file.path: store.read(file.path, 0, file.size) for file in store.files()}

    def remove(self, name: str) -> None:
        self._store().remove(name)

    def command_lines(self, made: Submitted) -> list[str]:
        return list(in_containers(self.application(made)).values())

    def kill_master(self, made: Submitted) -> None:
        os.kill(container_process(self.application(made), "", "master"), signal.SIGKILL)

    def kill_node(self, node: str) -> None:
        number = next(number for number in range(1, self.nodes + 1) if self.cluster.node_id(number) == node)
        self.cluster.daemon(f"nodemanager-{number}").kill()

    def revive(self) -> None:
        revived(self.cluster)

    def application(self, made: Submitted) -> str:
        return str(json.loads((made.storage / "site.json").read_bytes())["application"])

    def client(self) -> Any:
        from trainmaster.engines.yarn.client import YarnClient

        return YarnClient()

    def close(self) -> None:
        client = self.client()
        for made in self.jobs:
            application = self.application(made)
            if client.application_state(application)[0] == "running" and made.run.status()["state"] in (
                "pending",
                "running",
            ):
                client.end(application)  # a failed test has left it
            until(lambda name=application: client.application_state(name)[0] != "running", what="the application's end")
            until(lambda name=application: not in_containers(name), what=lambda name=application: in_containers(name))
        self._store().remove("")

    def _store(self) -> Any:
        from trainmaster.data.store.stores import store_for

        return store_for(f"hdfs://{self.root}")


@contextmanager
def yarn_on(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yarn]:
    """A cluster of a test's own as an engine; what the test killed of it lives again before jobs are looked for."""
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    revived(cluster)
    place = folder / "place"
    place.mkdir()
    made = Yarn(place, cluster)
    try:
        yield made
    finally:
        revived(cluster)
        made.close()


def in_containers(application: str) -> dict[int, str]:
    """pid -> command line of the processes of an application, by their directories."""
    found = {}
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and application in os.readlink(f"/proc/{entry}/cwd"):
                found[int(entry)] = (
                    Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
        except OSError:  # it ended meanwhile
            continue
    return {pid: line for pid, line in found.items() if line and linux.look(pid) is not None}


def container_process(application: str, container: str, what: str) -> int:
    """The pid of our process in a container: `what` is master or agent."""
    for pid, line in in_containers(application).items():
        if (
            f"trainmaster.{what}.container" in line
            and "begin.py" in line
            and container in os.readlink(f"/proc/{pid}/cwd")
        ):
            return pid
    raise AssertionError(f"no {what} in {container}: {in_containers(application)}")


def processes_of(job: str) -> list[Any]:
    """The living processes of a job of the local engine."""
    from trainmaster.host import processes

    return processes.living(job)
