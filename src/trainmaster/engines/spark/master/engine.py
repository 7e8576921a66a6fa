"""Spark as a master uses it: the bridge in the driver carries out its asks, and tells what Spark tells.

The master, the driver and its context live and die together: where the driver ends, all tasks do, and the job was killed by that; where the
master ends, the bridge cancels its tasks. So there is one master, and `open` finds no containers.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainmaster.core.containers import GONE, PLACED, RUNNING, Deletion, End, Habits, Request, Seen, is_growth
from trainmaster.core.errors import EngineFailed
from trainmaster.core.machine.stimuli import (
    ContainerExited,
    Key,
    KillRequested,
    Waiting,
    Warned,
)
from trainmaster.core.spec.job import Job
from trainmaster.core.spec.quantities import format_seconds
from trainmaster.engines.containers import Containers
from trainmaster.engines.contract import AgentSpec, Free, MasterContainer, MasterSide
from trainmaster.engines.packed import stores_of
from trainmaster.engines.spark import ENGINE, wire
from trainmaster.engines.spark.bridge.line import CORES
from trainmaster.engines.spark.master.ends import end_of
from trainmaster.engines.spark.master.tickets import Tickets

KEPT_WELL = 256 * 1024  # bytes that are kept of the log of an attempt that ended well, where agents reach no storage
AFTER_GRACE = 15.0  # s that an agent has to go by itself, beyond its role's grace
NOTICE = 60.0  # s that a task on a decommissioned executor is given to hear; Spark lets it end by itself, unless its cluster does not
SECRET = ("token", "secrets", "stores")  # of an agent's spec
GPU = "gpu"  # Spark's name of the resource
_NO_WAIT = Waiting("", "", "")


class BesideDriver(MasterContainer):
    """The place of a master beside the driver. `application`: APPLICATION/JOB."""

    def __init__(self, application: str, payload: Mapping[str, Any]) -> None:
        self._application, self._payload = application.partition("/")[0], payload
        self.address = str(payload["address"])
        self.agents = {"stay": 0} | ({} if payload["storage_of_agents"] else {"storage": "", "log_end": KEPT_WELL})

    def engine(self, job: Job, spec: AgentSpec, page: Callable[[bool], str]) -> MasterSide:
        return SparkMaster(self._application, self._payload, job, spec)


class SparkMaster(MasterSide):
    """The `MasterSide` of Spark."""

    habits = Habits()

    def __init__(self, application: str, payload: Mapping[str, Any], job: Job, spec: AgentSpec) -> None:
        self._application, self._payload, self._job, self._spec = application, payload, job, spec
        self._tickets = Tickets(str(payload["address"]), str(payload["certificate"]), str(payload["key"]))
        self._running: dict[Key, bool] = {}  # what Spark was asked for -> whether it has begun
        self._released: set[Key] = set()
        self._waiting = _NO_WAIT
        self._told = ""  # how the application ended, by its bridge
        self._lacking: Mapping[str, Any] | None = None  # the wait for executors that the application has not
        self._overdue: asyncio.TimerHandle | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, epoch: int, containers: Containers) -> Sequence[Seen]:
        self._containers = containers
        await self._tickets.open()
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
        containers.work(self._listen(reader))
        return ()

    def create(self, requests: Sequence[Request]) -> None:
        self._running |= {request.key: False for request in requests}
        self._send(asks=[self._order(request.key, request) for request in requests])

    def _order(self, key: Key, request: Request) -> dict[str, Any]:
        """Return the message that asks the bridge for a container."""
        return {
            "ask": key, "spec": self._without_secrets(request), "amounts": amounts_of(request), "memory": request.memory,
            "gang": request.gang, "is_growth": is_growth(request), "rank": (-request.job_priority, -request.priority),
            "environ": {"TRAINMASTER_CONTAINER": ENGINE.container_side, **self._payload["variables"]},
        }  # fmt: skip

    def _without_secrets(self, request: Request) -> dict[str, Any]:
        """Return the spec of a container's agent, with a ticket in place of its secrets."""
        spec = {**self._spec(request, ()), "stores": stores_of(self._payload["stores"], self._job, request.role)}
        values = {name: spec.pop(name) for name in SECRET}
        return {**spec, "ticket": self._tickets.ticket((request.task, request.serial), values)}

    def delete(self, deletions: Sequence[Deletion]) -> None:
        for key in (deletion.key for deletion in deletions):
            if self._running.get(key):
                self._released.add(key)
                self._send(release=key, within=self._job.roles[key[0].partition(":")[0]].stop.grace + AFTER_GRACE)
            else:
                self._send(release=key, within=0)
                self._end(key, ContainerExited(*key, None, "not-needed"))

    def _end(self, key: Key, end: End) -> None:
        self._running.pop(key, None)
        self._tickets.withdraw(key)
        self._containers.see(seen(key, GONE, end=end))

    async def free(self) -> Sequence[Free]:
        try:
            return free(await asyncio.to_thread(wire.ask, self._application, "free"))
        except OSError:
            return ()

    async def close(self, state: str) -> None:
        self._time_out(None)
        await self._tickets.close()
        self._send(close=state, within=AFTER_GRACE)
        if self._writer is not None:
            self._writer.close()

    # -- the bridge --

    @property
    def _over(self) -> str:
        return self._told or wire.over(self._application, str(self._payload["job_id"]))

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
        self._time_out(None)
        wire.clear(self._application)
        why = self._over
        self._containers.report(KillRequested(ENGINE.name, why, "killed-by-engine"))
        for key, runs in list(self._running.items()):
            if runs:  # nothing tells its end any more: its agent's own word does
                self._containers.report(Warned(*key, AFTER_GRACE, "killed-by-engine", {"detail": why}))
            else:
                self._end(key, ContainerExited(*key, None, "not-needed"))

    def _take(self, message: Mapping[str, Any]) -> None:
        ((kind, _),) = list(message.items())[:1]
        take: Callable[[Mapping[str, Any]], None] = getattr(self, f"_take_{kind}")
        take(message)

    def _take_chosen(self, message: Mapping[str, Any]) -> None:
        keys = [(task, serial) for task, serial in message["chosen"]]
        self._containers.see(*(seen(key, PLACED) for key in keys if key in self._running))

    def _take_started(self, message: Mapping[str, Any]) -> None:
        key = message["started"][0], message["started"][1]
        info = message["event"]["Task Info"]
        if self._running.get(key) is False:
            self._running[key] = True
            self._containers.see(seen(key, RUNNING, str(info["Host"]), str(info["Task ID"])))
            if self._waiting.resource:  # a grant ends the wait that the job shows, and others of its asks wait on
                self._containers.report(self._waiting)

    def _take_ended(self, message: Mapping[str, Any]) -> None:
        task, serial = key = message["ended"][0], message["ended"][1]
        if key in self._running:
            self._end(key, end_of(task, serial, message, key in self._released))

    def _take_warned(self, message: Mapping[str, Any]) -> None:
        task, serial = message["warned"]
        by = f"Spark, which decommissions executor {message['executor']}"
        self._containers.report(Warned(task, serial, NOTICE, "preempted", {"by": by}))

    def _take_waits(self, message: Mapping[str, Any]) -> None:
        waits = message["waits"]
        self._waiting = Waiting("slots", waits["asked"], waits["free"], waits["detail"]) if waits else _NO_WAIT
        self._containers.report(self._waiting)
        self._time_out(waits if waits and waits["is_lacking"] else None)

    def _take_over(self, message: Mapping[str, Any]) -> None:
        self._told = f"{message['over']} ({self._application}), and with it all tasks"

    def _time_out(self, waits: Mapping[str, Any] | None) -> None:
        """Refuse, after `timeouts.start`, an ask that the application lacks the executors for; None: it lacks none."""
        self._lacking, limit = waits, self._job.timeouts.start
        if waits is None and self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        elif waits is not None and limit is not None and self._overdue is None:
            self._overdue = asyncio.get_running_loop().call_later(limit, self._refuse)

    def _refuse(self) -> None:
        if self._lacking is not None:
            limit = format_seconds(self._job.timeouts.start)
            detail = f"it waited for executors for {limit}, timeouts.start; {self._lacking['detail']}"
            task, serial = self._lacking["asks"][0]
            self._containers.refuse((task, serial), detail)


def seen(key: Key, phase: str, node: str = "", name: str = "", end: End | None = None) -> Seen:
    """Return what is seen of a container. There is one for each key, and Spark names it once it has begun."""
    return Seen(key, phase, f"{key[0]}/{key[1]}", node, (), name, end=end)


def amounts_of(request: Request) -> dict[str, int]:
    """Return what a container takes of an executor: whole cores, and Spark's resources."""
    others = {name: count for name, count in {GPU: request.gpus, **request.extended}.items() if count}
    return {CORES: max(1, math.ceil(request.cores)), **others}


def free(executors: Sequence[Mapping[str, Any]]) -> list[Free]:
    """Return the executors as nodes. Spark counts no memory of a task: a task may use what its executor's host lets it."""
    return [
        Free(
            f"{row['host']} (executor {row['id']})", float(amounts[CORES]), 0, amounts.get(GPU, 0), float(rest[CORES]), 0, rest.get(GPU, 0),
            {}, _others(amounts), _others(rest),
        )
        for row in executors
        for amounts, rest in [(row["amounts"], row["free"])]
    ]  # fmt: skip


def _others(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in amounts.items() if name not in (CORES, GPU)}
