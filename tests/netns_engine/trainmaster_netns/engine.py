"""The engine as the submitting side, containers and masters use it. What a container needs comes on its stdin, so it is in no file."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from trainmaster.core.containers import GONE, RUNNING, Deletion, Habits, Request, Seen
from trainmaster.core.errors import BadInput, EngineFailed
from trainmaster.core.machine.stimuli import ContainerExited
from trainmaster.core.spec.reading import job_to
from trainmaster.engines import contract
from trainmaster.engines.containers import Containers
from trainmaster.engines.contract import Free, MasterContainer, MasterSide, OnCluster
from trainmaster.engines.statuses import REASONS
from trainmaster_netns import ENGINE

FOLDER = "TRAINMASTER_NETNS"  # the variable that names the cloud's folder
MACHINE = Free("new", 8.0, 8 * 2**30, 2, 8.0, 8 * 2**30, 2)  # the largest, of which there are always more


def call(folder: str, verb: str, **arguments: Any) -> Any:
    """Ask the cloud, and return its answer. The path of its socket goes by a descriptor: it may be longer than such paths may be."""
    directory = os.open(folder, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"/proc/self/fd/{directory}/socket")
            connection.sendall(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
            return json.loads(connection.makefile().readline())
    except (OSError, ValueError) as error:
        raise EngineFailed(f"the cloud does not answer: {error}", place=folder, anchor="netns") from error
    finally:
        os.close(directory)


class Store:
    """`ClusterStore`: the cloud's folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.jobs, self.inputs, self.outputs = map(self.private, ("jobs", "inputs", "outputs"))

    def private(self, kind: str) -> str:
        return f"file://{self._folder}/{kind}"

    def job_access(self, job: str) -> dict[str, Any] | None:
        _, payload = call(self._folder, "applications").get(f"netns-{job}", (None, None))
        return dict(payload) if payload else None


class NetnsClient(OnCluster):
    @property
    def place(self) -> str:
        if FOLDER not in os.environ:
            raise BadInput("no cloud is named", mend=f"set {FOLDER} to its folder", anchor="netns")
        return os.environ[FOLDER]

    def check(self, job: Any, requests: Sequence[Request]) -> None:
        for request in requests:
            larger = [name for name in ("cores", "memory", "gpus") if getattr(request, name) > getattr(MACHINE, name)]
            if missing := [*larger, *request.extended, *request.nodes.get("labels", ())]:
                text = f"{request.role} asks for more than a machine has: {', '.join(missing)}".replace("gpus", "GPUs")
                raise BadInput(text, place=f"roles.{request.role}", anchor="larger-than-the-cluster")

    def free(self) -> Sequence[Free]:
        return [MACHINE]

    def store(self, job: Any = None) -> Store:
        return Store(self.place)

    def submit(self, submission: contract.Submission) -> contract.Submitted:
        application = f"netns-{submission.job_id}"
        payload = {
            "job_id": submission.job_id, "job": job_to(submission.job), "site": {**submission.site, "application": application},
            "certificate": submission.certificate, **submission.secret, "folder": self.place, "application": application,
        }  # fmt: skip
        environ = {"TRAINMASTER_CONTAINER": ENGINE.container_side}
        if environment := submission.site.get("environment"):
            environ["TRAINMASTER_PYTHON"] = f"{environment}/bin/python3"
        files = [("runtime", str(submission.runtime(())), True)]
        files += [(file.name, str(file.path), file.unpacked) for file in submission.files]
        call(self.place, "submit", name=application, payload=payload, environ=environ, files=files)
        return contract.Submitted(application)

    def find_jobs(self, prefix: str) -> dict[str, str]:
        jobs = {name.removeprefix("netns-"): name for name in call(self.place, "applications")}
        return {job: name for job, name in jobs.items() if job.startswith(prefix) or name == prefix}

    def application_state(self, application: str) -> tuple[str, str]:
        unknown = (("unknown", "the cloud does not know it"), None)
        (state, why), _ = call(self.place, "applications").get(application, unknown)
        return state, why

    def reach(self, application: str, address: str, within: float) -> socket.socket:
        """Connect to the master in its network: a socket is of the namespace of the thread that makes it."""

        def connect() -> socket.socket:
            with open(call(self.place, "network", application=application) or "") as network:
                ctypes.CDLL(None).setns(network.fileno(), 0)
            return contract.connect_directly(address, within)

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(connect).result()

    def end(self, application: str) -> None:
        call(self.place, "end", application=application)

    def forget(self, job_id: str, application: str) -> None:
        call(self.place, "end", application=application, forget=True)


def agent() -> dict[str, Any]:
    spec, private, work = json.load(sys.stdin), os.path.abspath(".trainmaster"), os.path.abspath("work")
    for place in (private, work):
        os.mkdir(place, mode=0o700)
    del os.environ["TRAINMASTER_CONTAINER"]
    sockets = f"/proc/{os.getpid()}/fd/{os.open(private, os.O_PATH)}"  # a short name: sockets' paths are limited
    return {**spec, "work": work, "runtime": private, "sockets": sockets}


def master() -> tuple[str, dict[str, Any], MasterContainer]:
    payload = json.load(sys.stdin)
    directory = Path("jobs", payload["job_id"]).absolute()
    directory.mkdir(parents=True)
    for name in ("job", "site"):
        (directory / f"{name}.json").write_text(json.dumps(payload[name]))
    return str(directory), payload, NetnsContainer(payload)


class NetnsContainer(MasterContainer, MasterSide):
    habits = Habits(closing=60.0)

    def __init__(self, payload: Mapping[str, Any]) -> None:
        self.address = str(payload["address"])
        self._call = partial(call, payload["folder"], application=payload["application"])

    def engine(self, job: Any, spec: contract.AgentSpec, page: Callable[[bool], str]) -> MasterSide:
        self._spec = spec
        return self

    async def open(self, epoch: int, containers: Containers) -> Sequence[Seen]:
        self._containers = containers
        rows = await asyncio.to_thread(self._call, "seen", since=0)
        containers.work(self._watch(len(rows)))
        return [*map(seen, rows)]

    def create(self, requests: Sequence[Request]) -> None:
        specs = [self._spec(request, [*map(str, range(request.gpus))]) for request in requests]
        self._begin("create", specs=specs)

    def delete(self, deletions: Sequence[Deletion]) -> None:
        self._begin("delete", names=[deletion.id for deletion in deletions])

    async def free(self) -> Sequence[Free]:
        return [MACHINE]

    async def close(self, state: str) -> None:
        await asyncio.to_thread(self._call, "close", state=state)

    def _begin(self, verb: str, **arguments: Any) -> None:
        async def begin() -> None:
            await asyncio.to_thread(self._call, verb, **arguments)

        self._containers.work(begin())

    async def _watch(self, known: int) -> None:
        while True:
            rows = await asyncio.to_thread(self._call, "seen", since=known)
            self._containers.see(*map(seen, rows))
            known += len(rows)


def seen(row: Mapping[str, Any]) -> Seen:
    """Translate a row of the cloud: a machine that runs, or has ended with a status."""
    key, name, status = (row["task"], row["serial"]), row["name"], row["status"]
    if status is None:
        return Seen(key, RUNNING, name, name, tuple(row["devices"]))
    return Seen(key, GONE, name, end=ContainerExited(*key, status, REASONS.get(status), {"node": name}))
