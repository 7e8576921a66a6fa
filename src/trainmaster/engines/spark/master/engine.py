"""Spark as a master uses it: the bridge in the driver carries out its asks, and tells what Spark tells.

The master, the driver and its context live and die together: where the driver ends, all tasks do, and the job was killed by that; where the
master ends, the bridge cancels its tasks. So there is one master, and `open` finds no containers.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from trainmaster.core.errors import EngineFailed
from trainmaster.core.machine.stimuli import Change, ContainerExited, ContainerLost, Granted, Key, KillRequested
from trainmaster.core.spec.job import Job
from trainmaster.engines.changes import Changes
from trainmaster.engines.contract import AgentSpec, Free, Holder, MasterContainer, MasterSide, Request
from trainmaster.engines.packed import stores_of
from trainmaster.engines.spark import ENGINE, wire
from trainmaster.engines.statuses import REASONS

KEPT_WELL = 256 * 1024  # bytes that are kept of the log of an attempt that ended well, where agents reach no storage
AFTER_GRACE = 15.0  # s that an agent has to go by itself, beyond its role's grace


class BesideDriver(MasterContainer):
    """The place of a master beside the driver. `application`: APPLICATION/JOB."""

    def __init__(self, application: str, payload: Mapping[str, Any]) -> None:
        self._application, self._payload = application.partition("/")[0], payload
        self.address = str(payload["address"])
        self.agents = {} if payload["storage_of_agents"] else {"storage": "", "log_end": KEPT_WELL}

    def engine(self, job: Job, spec: AgentSpec, page: Callable[[bool], str]) -> MasterSide:
        return SparkMaster(self._application, self._payload, job, spec)


class SparkMaster(MasterSide):
    """The `MasterSide` of Spark."""

    def __init__(self, application: str, payload: Mapping[str, Any], job: Job, spec: AgentSpec) -> None:
        self._application, self._payload, self._job, self._spec = application, payload, job, spec
        self._changes = Changes()
        self._requests: dict[Key, Request] = {}
        self._containers: dict[Key, Granted] = {}
        self._released: set[Key] = set()
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, epoch: int) -> Sequence[Holder]:
        directory = os.open(wire.folder(), os.O_PATH)
        try:
            reader, self._writer = await asyncio.open_unix_connection(
                wire.short_path(self._application, directory), limit=wire.LIMIT
            )
        except OSError as error:
            raise EngineFailed(self._over, anchor="spark-application") from error
        finally:
            os.close(directory)
        self._send(verb="follow", job=self._payload["job_id"], token=self._payload["token"])
        self._changes.start(self._listen(reader))
        return ()

    async def ask(self, requests: Sequence[Request]) -> None:
        by_key = {(request.task, request.serial): request for request in requests}
        for key in self._requests.keys() - by_key.keys():
            self._withdraw(key)
        for key, request in by_key.items():
            if key in self._containers:
                self._changes.report(self._containers[key])
            elif key not in self._requests:
                self._requests[key] = request
                stores = stores_of(self._payload["stores"], self._job, request.role)
                self._send(
                    ask=key, spec={**self._spec(request, ()), "stores": stores}, cpus=math.ceil(request.cores), gpus=request.gpus,
                    environ={"TRAINMASTER_CONTAINER": ENGINE.container_side, **self._payload["variables"]},
                )  # fmt: skip

    async def release(self, task: str, serial: int) -> None:
        key = (task, serial)
        if key in self._containers and self._writer is not None:
            self._released.add(key)
            self._send(release=key, within=self._job.roles[task.partition(":")[0]].stop.grace + AFTER_GRACE)
        else:
            if key in self._requests:
                self._withdraw(key)
            self._containers.pop(key, None)
            self._changes.report(ContainerExited(task, serial, None, "not-needed"))

    def _withdraw(self, key: Key) -> None:
        del self._requests[key]
        self._send(release=key, within=0)

    def changes(self) -> AsyncIterator[Change]:
        return self._changes.stream()

    async def free(self) -> Sequence[Free]:
        try:
            return free(await asyncio.to_thread(wire.ask, self._application, "free"))
        except OSError:
            return ()

    async def close(self, state: str) -> None:
        await self._changes.cancel()
        self._send(close=state, within=AFTER_GRACE)
        if self._writer is not None:
            self._writer.close()

    # -- the bridge --

    @property
    def _over(self) -> str:
        return wire.over(self._application, str(self._payload["job_id"]))

    def _send(self, **message: Any) -> None:
        if self._writer is not None:
            self._writer.write(wire.line(message))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while message := await reader.readline():
                self._take(json.loads(message))
        except OSError:
            pass  # as its end
        self._writer = None
        wire.clear(self._application)
        self._changes.report(KillRequested(ENGINE.name, self._over))
        for key in self._requests:
            self._changes.report(ContainerExited(*key, None, "not-needed"))

    def _take(self, message: Mapping[str, Any]) -> None:
        if "started" in message:
            task, serial = message["started"]
            info = message["event"]["Task Info"]
            if self._requests.pop((task, serial), None) is not None:
                self._containers[task, serial] = Granted(task, serial, str(info["Task ID"]), str(info["Host"]))
                self._changes.report(self._containers[task, serial])
        else:
            task, serial = key = message["ended"][0], message["ended"][1]
            is_known = key in self._containers or key in self._requests
            self._containers.pop(key, None)
            self._requests.pop(key, None)
            if is_known:
                self._changes.report(end_of(task, serial, message, key in self._released))


def end_of(task: str, serial: int, message: Mapping[str, Any], is_released: bool) -> Change:
    """Return what became of a container, of its end as the bridge tells it."""
    if (status := message.get("status")) is not None:
        return ContainerExited(task, serial, status, REASONS.get(status))
    if is_released:
        return ContainerExited(task, serial, None, "not-needed")
    event = message.get("event")
    if event is None:
        return ContainerExited(task, serial, None, "localization-failed", {"detail": message["error"]})
    why, info = event["Task End Reason"], event["Task Info"]
    if why["Reason"] == "ExecutorLostFailure":
        detail = f"executor {why['Executor ID']} on {info['Host']} was lost: {why.get('Loss Reason') or 'Spark does not say why'}"
        return ContainerLost(task, serial, "killed-by-engine", {"detail": detail})
    if why["Reason"] == "TaskKilled":
        return ContainerLost(
            task, serial, "killed-by-engine", {"detail": f"Spark's task was killed: {why.get('Kill Reason')}"}
        )
    detail = why.get("Description") or why["Reason"]
    return ContainerExited(task, serial, None, "localization-failed", {"detail": detail, "node": info["Host"]})


def free(executors: Sequence[Mapping[str, Any]]) -> list[Free]:
    """Return the executors as nodes. Spark counts no memory of a task: a task may use what its executor's host lets it."""
    return [
        Free(f"{row['host']} (executor {row['id']})", float(row["cores"]), 0, 0, float(row["free"]), 0, 0)
        for row in executors
    ]
