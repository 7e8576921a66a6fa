"""What all attempts of one task in this container have in common: who it is, what it may use, where its things are."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs

from trainmaster.agent.attempt.materials import Materials
from trainmaster.agent.attempt.program import Launch
from trainmaster.agent.attempt.threads import Threads
from trainmaster.agent.attempt.workplace import Workplace
from trainmaster.agent.link.programs import Programs
from trainmaster.agent.output import spool
from trainmaster.core.spec.redaction import passwords_in_urls
from trainmaster.engines.contract import BY_AGENT, BY_KERNEL
from trainmaster.host.allowance import Allowance
from trainmaster.host.linux import Process
from trainmaster.host.process_tree import kin

DRAIN_STOPPED = 5.0  # s in which reports of shards may still reach the master when the attempt is stopped


@attrs.define(slots=True, eq=False, repr=False)
class Place:
    """The container of one task."""

    job: str
    task: str
    serial: int
    on_this_machine: bool  # the container is a process of the submitter's machine
    memory_limit: str  # who tells that a program used too much (`engines.contract.Capabilities`)
    logs: str  # the folder of the task's logs, on this machine
    workplace: Workplace
    programs: Programs
    materials: Materials
    allowance: Allowance
    environ: Mapping[str, str]
    secrets: Mapping[str, Mapping[str, str]]  # of its role, and of every role under ""
    report: Callable[..., None]
    acknowledged: Callable[[], Awaitable[None]]  # waits until the master has durably what was reported
    sample: Callable[[dict[str, Any]], None]
    grown: Callable[[], None]  # some log grew
    environment: str = ""  # the directory with the programs' Python, which may have to be fixed up first
    address: str = "127.0.0.1"
    network: str = ""  # what the job names for it; else it is the one by which the master is reached
    devices: Sequence[str] = ()
    log_limit: int = spool.LIMIT
    log_first: int = spool.HEAD
    own_network: bool = False  # whether the network devices seen are the container's alone
    grace: float = 30.0
    patience: float = 600.0  # s that a storage may be away
    threads: Threads = attrs.field(factory=Threads)
    prepared: bool = False  # the role's `prepare` command has run
    blamed_port: bool = False
    _memory: Any = None
    going: bool = False  # the engine ends the container, and all in it

    def settle_address(self) -> None:
        """Have the address on the network that the job names. Raises BadInput where this host has none there."""
        if self.network:
            from trainmaster.host.interfaces import address_on  # few jobs name one

            self.address = address_on(self.network)

    def settle_environment(self) -> None:
        """Have the programs' Python know its place. It may take minutes: for a thread. Raises OSError, TimeoutExpired."""
        if self.environment:
            from pathlib import Path

            from trainmaster.agent.attempt.activation import fix

            fix(Path(self.environment).absolute())

    @property
    def role(self) -> str:
        return self.task.rpartition(":")[0]

    @property
    def index(self) -> int:
        return int(self.task.rpartition(":")[2])

    @property
    def secret_values(self) -> list[str]:
        """Return the values that this container was given, and the passwords of URLs among them: no program of it has another role's."""
        values = [value for secrets in self.secrets.values() for value in secrets.values()]
        return values + [password for value in values for password in passwords_in_urls(value)]

    def log(self, attempt: int) -> str:
        return os.path.join(self.logs, f"{attempt}.log")

    # -- the programs' socket --

    async def end_programs(self, stopped: bool) -> None:
        """The program is over: what it reported reaches the master, then its connections are closed."""
        if not self.programs.attempt:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_STOPPED if stopped else self.grace):
                await self.programs.drain()
        self.programs.end()

    def processes(self) -> list[Process]:
        """Whatever runs below the agent and is the program's."""
        return kin(os.getpid())

    # -- what the engine allows --

    def limit_memory(self, limit: int | None) -> Any:
        """A control group with that limit (see `host.limits`), or None where none can be made or none is asked for."""
        if limit is None or self.memory_limit != BY_AGENT:
            return None
        from trainmaster.host.limits import MemoryLimit

        return MemoryLimit.create(self.job, self.task, limit)

    def exceeded(self, group: Any, limit: int | None = None) -> dict[str, int] | None:
        """Figures where the kernel has killed something of `group`, or of this container, for its memory; None where it has not, or that is
        not ours to see. `limit`: what the program itself may use of the container.
        """
        if group is not None:
            told: dict[str, int] | None = group.exceeded()
            return told
        if self.memory_limit != BY_KERNEL:
            return None
        if self._memory is None:
            from trainmaster.agent.watch.container_memory import ContainerMemory

            self._memory = ContainerMemory()
            return None
        found: dict[str, int] | None = self._memory.exceeded()
        return found if found is None or limit is None else {**found, "limit": limit}

    @staticmethod
    def inside(launch: Launch, group: Any) -> Launch:
        """The launch, its copies joining `group` before they become the program."""
        return attrs.evolve(launch, before=(*launch.before, group.add))

    def mark(self, pids: Sequence[int]) -> None:
        """Note the program's processes where whoever survives us finds them."""
        if self.on_this_machine:
            from trainmaster.host import processes

            for pid in pids:
                processes.mark(self.job, processes.PROGRAM, self.task, self.serial, pid)
