"""Host a master: provide its engine, its listeners and its part of its agents' specs.

*Here*, a master is a process of the submitter's machine: agents are forked out of a warm template and come over a Unix socket, readers over
another, both in the job's private runtime directory. *In a container*, it has one TLS listener for all of them, under the certificate made
at submit, which every client pins; agents get the addresses at their start, and read the master's record when they have lost the master.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainmaster.core.machine.formation import bracketed
from trainmaster.core.spec.job import Job
from trainmaster.engines import registry
from trainmaster.engines.contract import AgentSpec, MasterContainer, MasterSide, Tokens
from trainmaster.host.linux import descriptor_limit
from trainmaster.log.documents.jobs import known_site
from trainmaster.runtime.network.listeners import plain_address
from trainmaster.runtime.network.pinned import serving

if TYPE_CHECKING:
    from trainmaster.master.connections.serve import AgentSocket

READERS_AFTER = 0.25  # s


class MasterHost(Protocol):
    """A host of a master has these duties."""

    addresses: tuple[str, ...]  # for the master's record; known once it is bound
    place: str  # for people
    tokens: Tokens | None
    key: str  # of the job's certificate, PEM; "" where all of the job is on this machine
    near: bool  # whether some nodes can be nearer to a task's data than others
    machine_cores: float  # of the machine on which all tasks are, where they are on one

    def engine(self, job: Job, spec: AgentSpec) -> MasterSide:
        """Return the engine, as this job's master uses it. `spec(request, devices)` returns the spec of a container's agent."""

    def tasks_of_others(self) -> int:
        """Return how many tasks of other jobs share that machine's cores now."""

    def agent(self) -> dict[str, Any]:
        """Return the fields of an agent's spec beside those that every engine gives (see `agent.main`)."""

    def bind(self) -> None:
        """Bind an address: clients that connect wait."""

    async def serve(self, application: Any, facts: Any) -> None:
        """Answer agents, from now on until closed. `facts`: shown to the cluster's own readers."""

    async def serve_readers(self) -> None:
        """Answer commands until cancelled."""

    async def close(self) -> None:
        """Take no more connections."""

    def leave(self) -> None:
        """Remove what served only the job's life, which is over."""


class LocalHost:
    """A host on the submitter's machine, with the template of the agents at `link`."""

    tokens: Tokens | None = None
    key = ""
    near = False

    def __init__(self, storage: str, payload: Mapping[str, Any], link: Any) -> None:
        from trainmaster.host import machine, places

        self.machine_cores = machine.cores()
        self._storage, self._payload, self._link = storage, payload, link
        self._engine = registry.engine(known_site(storage).get("engine") or registry.DEFAULT)
        self._job = Path(storage).name
        self._runtime = places.job_dir(self._job)
        self.place = str(self._runtime / "master.sock")
        self.addresses: tuple[str, ...] = (f"unix:{self.place}",)
        self._agents_socket = str(self._runtime / "agents.sock")
        self._agents: AgentSocket | None = None

    def engine(self, job: Job, spec: AgentSpec) -> MasterSide:
        side: MasterSide = self._engine.load("master_side")(self._job, spec, self._link)
        self._side = side
        return side

    def tasks_of_others(self) -> int:
        return self._side.tasks_of_others()

    def agent(self) -> dict[str, Any]:
        settings = {name: self._payload.get(name) for name in ("environ", "allowance")}
        return {
            **settings, "socket": self._agents_socket, "directory": self._storage,
            "runtime": str(self._runtime), "master_pid": os.getpid(), "network": "",
            "all_secrets": self._payload.get("secrets") or {},
        }  # fmt: skip

    def bind(self) -> None:
        from trainmaster.master.connections.serve import AgentSocket

        self._agents = AgentSocket(self._agents_socket, self._payload["token"])

    async def serve(self, application: Any, facts: Any) -> None:
        assert self._agents is not None
        self._application = application
        await self._agents.serve(application.agents)

    async def serve_readers(self) -> None:
        """Listen for commands until cancelled. The imports wait until the first programs are under way: until then, readers find all there
        is in the storage.
        """
        from trainmaster.master.connections.serve import Listener, warm

        await asyncio.sleep(READERS_AFTER)
        await asyncio.to_thread(warm)
        listener = Listener(self._application)
        await listener.on_socket(self.place)
        try:
            await asyncio.Event().wait()
        finally:
            await listener.close()

    async def close(self) -> None:
        if self._agents is not None:
            await self._agents.close()

    def leave(self) -> None:
        from trainmaster.host import places

        if self._engine.capabilities.on_this_machine:  # not one that only ends the log of a cluster's job here
            self._engine.load("client_side")().forget(Path(self._storage))
        places.remove_job_dir(self._job)


class ContainerHost:
    """A host in a container of an engine; `job`: the job's id; `certificate` and `key`: the job's, PEM."""

    near = True
    machine_cores = 0.0

    def __init__(self, container: MasterContainer, job: str, certificate: str, key: str) -> None:
        self._container, self._job, self._certificate, self.key = container, job, certificate, key
        self.tokens = container.tokens
        self._page = self._page_name = self._history = ""
        self._sockets: list[socket.socket] = []
        self._listeners: list[Any] = []
        self.place = ""
        self.addresses: tuple[str, ...] = ()

    def engine(self, job: Job, spec: AgentSpec) -> MasterSide:
        self._history = f"{job.pages.rstrip('/')}/jobs/{self._job}/" if job.pages else ""
        return self._container.engine(job, spec, lambda ended: (self._history if ended else "") or self._page)

    def tasks_of_others(self) -> int:
        return 0

    def agent(self) -> dict[str, Any]:
        return {
            "addresses": list(self.addresses), "certificate": self._certificate, **self._container.agents,
        }  # fmt: skip

    def bind(self) -> None:
        from trainmaster.runtime.network.listeners import MASTER, PAGE

        self._sockets = [
            MASTER.at_address(port=self._container.port),
            *([PAGE.at_address()] if self._container.proxies else []),
        ]
        host = bracketed(self._container.address)
        self.place, *pages = (f"{host}:{listener.getsockname()[1]}" for listener in self._sockets)
        self.addresses = (self.place,)
        self._page_name = pages[0] if pages else ""
        self._page = f"http://{self._page_name}/" if pages else ""

    async def serve(self, application: Any, facts: Any) -> None:
        from trainmaster.master.connections.serve import Late, Listener, warm
        from trainmaster.runtime.network.door import Crowd

        await asyncio.to_thread(warm)
        context = await asyncio.to_thread(serving, self._certificate, self.key)
        crowd = Crowd(descriptor_limit())
        self._listeners.append(Listener(application, application.trusts, crowd))
        await self._listeners[0].on_tcp(self._sockets[0], context)
        if self._container.proxies:

            def pages() -> Any:
                from trainmaster.web.proxied import proxied

                return proxied(facts, self._container, self._page_name)

            self._listeners.append(Listener(Late(pages), self._is_proxy, crowd))
            await self._listeners[1].on_tcp(self._sockets[1])

    def _is_proxy(self, scope: Mapping[str, Any]) -> bool:
        return plain_address(str(scope["client"][0])) in self._container.proxies

    async def serve_readers(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        for listener in self._listeners:
            await listener.close()
        for bound in self._sockets:  # also those that were never served
            bound.close()

    def leave(self) -> None:
        self._container.leave()


class ClosingHost(LocalHost):
    """A host on this machine, for a job whose engine has ended all its processes: only the end of its log is left to write."""

    def engine(self, job: Job, spec: AgentSpec) -> MasterSide:
        from trainmaster.engines.nothing import Nothing

        return Nothing()

    def tasks_of_others(self) -> int:
        return 0
