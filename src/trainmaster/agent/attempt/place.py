"""The facts that all attempts of one task in this container share: its identity, what it may use, where its files are."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs

from trainmaster.agent.attempt.failure import AttemptFailed
from trainmaster.agent.attempt.materials import Materials
from trainmaster.agent.attempt.program import Launch
from trainmaster.agent.attempt.threads import Threads
from trainmaster.agent.attempt.workplace import Workplace
from trainmaster.agent.link.programs import Programs
from trainmaster.agent.output import spool
from trainmaster.core.spec.redaction import passwords_in_urls, redact
from trainmaster.engines.statuses import BY_AGENT, BY_ENGINE, BY_KERNEL
from trainmaster.host.allowance import Allowance
from trainmaster.host.linux import Process
from trainmaster.host.network.way import AUTO, Way, find_way
from trainmaster.host.process_tree import kin

NAMES = 256  # texts of programs whose redaction is remembered
DRAIN_STOPPED = 5.0  # s in which reports of shards may still reach the master when the attempt is stopped


@attrs.define(slots=True, eq=False, repr=False)
class Place:
    """The container of one task."""

    job: str
    task: str
    serial: int
    on_this_machine: bool  # the container is a process of the submitter's machine
    memory_limit: str  # who reports that a program used too much (`engines.contract.Capabilities`)
    logs: str  # the folder of the task's logs, on this machine
    workplace: Workplace
    programs: Programs
    materials: Materials
    allowance: Allowance
    environ: Mapping[str, str]
    secrets: Mapping[str, Mapping[str, str]]  # of its role, and under "" of every role
    report: Callable[..., None]
    acknowledged: Callable[[], Awaitable[None]]  # waits until the master has stored all reports durably
    sample: Callable[[dict[str, Any]], None]
    grown: Callable[[], None]  # some log grew
    environment: str = ""  # the directory with the programs' Python, which may have to be fixed up first
    address: str = "127.0.0.1"
    network: str = ""  # as the job names it; else the one by which the master is reached
    transport: str = "auto"
    way: Way = attrs.field(factory=Way)
    devices: Sequence[str] = ()
    broken: Sequence[tuple[str, str]] = ()  # promises of the engine that its cluster has not kept (`engines.promises`)
    log_limit: int = spool.LIMIT
    log_first: int = spool.HEAD
    own_network: bool = False  # whether the network devices seen are the container's alone
    grace: float = 30.0
    patience: float = 600.0  # s that a storage may be away
    threads: Threads = attrs.field(factory=Threads)
    prepared: bool = False  # the role's `prepare` command has run
    send: Callable[[dict[str, Any]], None] = lambda message: None  # to the master, which acknowledges nothing of it
    feeds: Any = None  # `agent.input.feeds.Feeds`, where the role has feeds
    feeders_outside: tuple[str, str, str] | None = (
        None  # token, certificate and key, where feeders of other hosts may come
    )
    keeper: Any = None  # of a template for warm restarts (`agent.warm.keeper`), once an attempt has begun
    blamed_port: bool = False
    _memory: Any = None
    going: bool = False  # the engine ends the container, with all in it

    def __attrs_post_init__(self) -> None:
        self.programs.redact = functools.lru_cache(NAMES)(self.redact)  # programs report the same names again and again

    def settle_address(self) -> None:
        """Take this host's address, and find what it is on. Raises BadInput where it has none on the network that the job names, or no RDMA
        device that the job could use and wants.
        """
        if self.network or self.transport != AUTO or not self.address.startswith("127."):
            self.address, self.way = find_way(self.address, self.network, self.transport)

    def settle_environment(self) -> None:
        """Adapt the programs' Python to its place. It may take minutes: for a thread. Raises AttemptFailed where the job's environment has
        none, since another one would run, and OSError, TimeoutExpired.
        """
        if self.environment:
            python = os.path.abspath(os.path.join(self.environment, "bin", "python3"))
            if not any(os.access(path, os.X_OK) for path in (python, python.removesuffix("3"))):
                raise AttemptFailed("no-python", {"path": python})
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
        """Return this container's secrets, and the passwords of URLs among them. None of its programs has another role's secrets."""
        values = [value for secrets in self.secrets.values() for value in secrets.values()]
        return values + [password for value in values for password in passwords_in_urls(value)]

    def redact(self, data: Any) -> Any:
        """Redact, by value and by form, a text that comes from a program, or plain data with such texts."""
        return redact(data, self.secret_values)

    def log(self, attempt: int) -> str:
        return os.path.join(self.logs, f"{attempt}.log")

    # -- the programs' socket --

    async def end_programs(self, stopped: bool) -> None:
        """Let an ended program's reports reach the master, then close its connections."""
        if not self.programs.attempt:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_STOPPED if stopped else self.grace):
                await self.programs.drain()
        self.programs.end()

    def processes(self) -> list[Process]:
        """Return every process below the agent that is the program's."""
        return kin(os.getpid())

    async def end_template(self) -> None:
        """End the template of warm restarts."""
        if self.keeper is not None:
            await self.keeper.close()

    # -- the engine's limits --

    def template_room(self, warm: Mapping[str, Any]) -> tuple[int | None, bool]:
        """Return the bytes that there are for a template (None: no limit), and whether shared memory counts with each process."""
        room = None if self.memory_limit == BY_AGENT else int(warm.get("overhead", 0))
        return room, self.memory_limit == BY_ENGINE

    def limit_memory(self, limit: int | None) -> Any:
        """Return a control group with that limit (see `host.limits`), or None where none can be made or none is needed."""
        if limit is None or self.memory_limit != BY_AGENT:
            return None
        from trainmaster.host.limits import MemoryLimit

        return MemoryLimit.create(self.job, self.task, limit)

    def exceeded(self, group: Any, limit: int | None = None) -> dict[str, int] | None:
        """Return the figures of a kill by the kernel, for memory, in `group` or in this container.

        Return None where nothing was killed, or we cannot see it. `limit`: the part of the container that the program may use.
        """
        if group is not None:
            group_figures: dict[str, int] | None = group.exceeded()
            return group_figures
        if self.memory_limit != BY_KERNEL:
            return None
        if self._memory is None:
            from trainmaster.agent.watch.container_memory import ContainerMemory

            self._memory = ContainerMemory()
            return None
        figures: dict[str, int] | None = self._memory.exceeded()
        return figures if figures is None or limit is None else {**figures, "limit": limit}

    @staticmethod
    def inside(launch: Launch, group: Any) -> Launch:
        """Return the launch with its copies joining `group` before they become the program."""
        return attrs.evolve(launch, before=(*launch.before, group.add))

    def mark(self, pids: Sequence[int]) -> None:
        """Note the program's processes where any survivor of this agent finds them."""
        if self.on_this_machine:
            from trainmaster.host import processes

            for pid in pids:
                processes.mark(self.job, processes.PROGRAM, self.task, self.serial, pid)
