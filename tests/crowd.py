"""Agents of many pods in one process, for jobs on simulated nodes, whose pods run nothing.

    async with Crowd(config, job_id) as crowd:  # from now on each pod of the job's tasks that is placed has its agent
        await until_async(lambda: crowd.running == 1000)
        crowd.finish()                           # all programs end well

Each has a real channel to the real master, by what its pod was given (token, certificate, addresses), does what it is told at once, and
dies with its pod. What its program does is nothing.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

from trainmaster.agent.link.channel import Channel, Link
from trainmaster.engines.kubernetes.container.entry import agent_key
from trainmaster.engines.kubernetes.names import selector
from trainmaster.engines.packed import SPEC
from trainmaster.kube.client import Client
from trainmaster.kube.config import Config
from trainmaster.kube.kinds import PODS, SECRETS
from trainmaster.kube.watching import follow


class Played:
    """One agent. Implements `channel.Owner`."""

    def __init__(self, told: Mapping[str, Any], pod: Mapping[str, Any], finished: asyncio.Event) -> None:
        self.channel = Channel(Link(told["token"], 300.0, "", tuple(told["addresses"]), told["certificate"]), self)
        self.running = self.left = False
        self._told, self._pod, self._finished = told, pod, finished
        self._attempt = 0
        self._done: set[tuple[Any, ...]] = set()

    async def live(self) -> None:
        connection = asyncio.create_task(self.channel.run())
        try:
            await self._finished.wait()
            if self.running:
                self._ended(reason="exit", status=0)
            await connection
        finally:
            connection.cancel()
            await asyncio.gather(connection, return_exceptions=True)
            self.running = False

    def hello(self) -> dict[str, Any]:
        name, node = self._pod["metadata"]["name"], self._pod["spec"]["nodeName"]
        return {
            "task": self._told["task"], "serial": self._told["serial"], "node": node, "container": name,
            "address": self.channel.address, "attempt": self._attempt, "holds": {},
        }  # fmt: skip

    def receive(self, message: Mapping[str, Any]) -> None:
        verb, attempt = message.get("verb"), int(message.get("attempt") or 0)
        key = (verb, attempt, message.get("id"))
        if message.get("type") != "order" or key in self._done or attempt < self._attempt:
            return
        self._done.add(key)
        self._attempt = attempt
        if verb == "prepare":
            self.channel.report("ready", attempt, address=self.channel.address, ports={}, elapsed=0.0)
        elif verb == "start":
            self.running = True
            self.channel.report("started", attempt, pid=1, elapsed=0.0)
            if self._finished.is_set():
                self._ended(reason="exit", status=0)
        elif verb == "stop":
            self._ended(reason="signal", stopped=True, figures={"name": "SIGTERM"})
        elif verb == "leave":
            self.left = True
            self.channel.report("left", attempt)

    def _ended(self, **how: Any) -> None:
        self.running = False
        self.channel.report("ended", self._attempt, elapsed=1.0, **how)

    def log_piece(self) -> None:
        return None

    def connected(self, welcome: Mapping[str, Any]) -> None: ...

    def disconnected(self) -> None: ...

    def over(self, why: str) -> None: ...


class Crowd:
    """The agents of the pods of a job's role `worker`.

    `made`: when each pod was, by the API server's word, in whole seconds since the epoch: this process has so much to do that it hears of
    them late.
    """

    def __init__(self, config: Config, job_id: str) -> None:
        self._client, self._job_id = Client(config), job_id
        self._finished = asyncio.Event()
        self._agents: dict[str, tuple[Played, asyncio.Task[None]]] = {}
        self._secret: dict[str, Any] = {}
        self._following: asyncio.Task[None] | None = None
        self.made: dict[str, float] = {}

    async def __aenter__(self) -> Self:
        secret = await self._client.get(SECRETS, self._job_id)
        self._secret = json.loads(b64decode(secret["data"][agent_key("worker")]))
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        work = [task for _, task in self._agents.values()] + [task for task in (self._following,) if task]
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await self._client.close()

    @property
    def running(self) -> int:
        """How many programs run."""
        return sum(agent.running for agent, _ in self._agents.values())

    def finish(self) -> None:
        """All programs end well, those too that begin later."""
        self._finished.set()

    async def _follow(self) -> None:
        async for seen in follow(self._client, PODS, selector(self._job_id)):
            if seen.kind in ("synced", "away"):
                continue
            pod = seen.object
            uid = pod["metadata"]["uid"]
            self.made[uid] = datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()
            if seen.kind == "deleted" or pod["metadata"].get("deletionTimestamp"):
                if (known := self._agents.pop(uid, None)) is not None:
                    known[1].cancel()
            elif uid not in self._agents and pod["spec"].get("nodeName"):
                agent = Played({**_spec_of(pod), **self._secret}, pod, self._finished)
                self._agents[uid] = agent, asyncio.create_task(agent.live())


def _spec_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """What a pod's agent is told, but for what is secret."""
    given = {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}
    pieces = [given[name] for name in sorted(given, key=len) if name.startswith(f"{SPEC}_")]
    told: dict[str, Any] = json.loads(zlib.decompress(b64decode("".join(pieces))))
    return told
