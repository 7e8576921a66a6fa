"""The local engine as a master uses it: its asks in the ledger, its containers from the template.

Each master serves the whole line in its turns (see `ledger`) and wakes whom it granted something by an empty datagram to
`<runtime>/<job>/wake.sock`. A master that waits also watches, by pidfd, every process that holds something, and so knows of a death at
once whoever else has died; a slow poll stands behind both.

What happened to containers is told whether or not the ledger can be written (a full disk, a lock that somebody sits on): what it has not
been told is owed to it, in order, and tried again with each poll. Any other failure of ours ends the stream of changes with it, and so the
master, whose successor begins anew. The driver of accelerators is asked in a thread, and only while somebody in line wants one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from trainmaster.core.machine.stimuli import ContainerExited, Granted, Refused, Waiting
from trainmaster.engines.contract import Change, Free, Holder, Request
from trainmaster.engines.local import queue
from trainmaster.engines.local.containers import Containers, Key
from trainmaster.engines.local.ledger import Ledger
from trainmaster.engines.local.template import Link
from trainmaster.host import limits, linux, places, processes
from trainmaster.host.machine import Capacity, machine
from trainmaster.host.processes import Process

Spec = Callable[[Request, Sequence[str]], Mapping[str, Any]]
_WAKE = "wake"
_LEDGER_WAIT = 2.0  # s, in the loop, for another's turn; agents miss us after many times that
log = logging.getLogger(__name__)


class LocalMaster:
    """`MasterSide` on this machine. A request's `nodes.labels` were refused at submit, there being none; `nodes.exclude` may name it.

    `spec(request, devices)` says what the agent of a container is given. `link` is the template forked before the loop began, if
    there is one; `command` starts another. `patience` is how long an agent told to go may take, in seconds.
    """

    def __init__(
        self,
        job: str,
        spec: Spec,
        command: Sequence[str],
        link: Link | None = None,
        *,
        capacity: Callable[[bool], Capacity] = machine,
        poll: float = 2.0,
        patience: float = 15.0,
    ) -> None:
        self._job, self._spec, self._command, self._link = job, spec, command, link
        self._capacity, self._poll, self._patience = capacity, poll, patience
        self._epoch = 0
        self._changes: asyncio.Queue[Change | BaseException | None] = asyncio.Queue()
        self._requests: dict[Key, Request] = {}
        self._started: dict[Key, tuple[str, ...]] = {}  # held and handed to the template or running, with its devices
        self._gangs: dict[Key, str] = {}  # members of a gang that are being started
        self._together: dict[
            str, list[Granted]
        ] = {}  # gang -> its members that have begun while others are being started
        self._leaving: set[Key] = set()
        self._refused: set[Key] = set()
        self._last_waiting: Waiting | None = None
        self._pidfds: dict[Process, int] = {}
        self._owed: list[Callable[[], None]] = []  # writes of which the ledger has not been told yet
        self._ledger_trouble = ""
        self._put_off = False  # whether the ledger is left alone until the poll
        self._looking: asyncio.Task[None] | None = None  # for free devices
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._idle = asyncio.Event()  # set whenever nothing is held

    # -- the contract --

    async def open(self, epoch: int) -> Sequence[Holder]:
        """Take part as the master of this epoch; EngineFailed where the ledger knows a later one."""
        self._loop, self._epoch = asyncio.get_running_loop(), epoch
        self._ledger = Ledger()
        me = processes.this_process()
        with places.locked():
            self._ledger.enter(self._job, epoch, me)
            self._ledger.wait_at_most(_LEDGER_WAIT)
            processes.mark(self._job, processes.MASTER, "", 0, me.pid)
        places.set_live(self._job, True)
        self._kept = places.hold_runtime_dir()
        self._bind()
        self._containers = Containers(self._job, self._link, self._command, self._began, self._ended, self._failed)
        if epoch > 1:
            await asyncio.to_thread(limits.remove_orphaned_groups, self._job)
        holders = []
        for entry in self._ledger.entries(self._job):
            if entry.running and entry.process.alive:
                self._started[entry.key] = entry.hold.devices
                self._containers.adopt(*entry.key, entry.process)
                holders.append(Holder(*entry.key, f"local/{entry.process.pid}", places.node_name()))
        return holders

    async def ask(self, requests: Sequence[Request]) -> None:
        """State the whole set of asks not granted yet; what this machine can never grant is refused at once."""
        capacity = await self._size(any(one.gpus for one in requests))
        fresh = [one for one in requests if (one.task, one.serial) not in self._started]
        wanted = self._without_refused(fresh, capacity)
        self._requests = {(one.task, one.serial): one for one in wanted}
        self._owe(lambda: self._ledger.ask(self._job, self._epoch, wanted))
        self._turn()

    async def release(self, task: str, serial: int) -> None:
        """Take back: SIGTERM to the agent, SIGKILL after `patience`. What is not held is over at once."""
        key = task, serial
        if key in self._started:
            if key not in self._leaving:
                self._leaving.add(key)
                self._end(key)
            return
        self._requests.pop(key, None)
        self._ended(key, None, None, {})

    async def changes(self) -> AsyncIterator[Change]:
        """What happens, in order, until `close`; raises what keeps us from hearing of more."""
        while (change := await self._changes.get()) is not None:
            if isinstance(change, BaseException):
                raise change
            yield change

    async def free(self) -> Sequence[Free]:
        """This machine, as the one node."""
        capacity = await self._size(True)
        left = queue.free(capacity, self._ledger.holds())
        return [
            Free(
                places.node_name(), capacity.cores, capacity.memory, len(capacity.devices),
                max(0, left.cores) / 1000, max(0, left.memory), left.gpus,
            )
        ]  # fmt: skip

    def tasks_of_others(self) -> int:
        """Return how many tasks of other jobs share this machine's cores now; 0 where the ledger does not say."""
        with contextlib.suppress(sqlite3.Error):
            return self._ledger.held_by_others(self._job)
        return 0

    async def close(self, state: str) -> None:
        """Give everything back; the job is then finished for the sweep. Its runtime folder is left to the master, which still serves."""
        if self._closed:
            return
        self._requests.clear()
        self._owe(lambda: self._ledger.ask(self._job, self._epoch, []))
        for key in list(self._started):
            await self.release(*key)
        if self._started:
            with contextlib.suppress(TimeoutError):  # a process that the kernel does not let go is no reason to stay
                await asyncio.wait_for(self._idle.wait(), self._patience + 10)
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
        self._watch(set())
        await asyncio.to_thread(limits.remove_groups, self._job)
        self._put_off = False
        self._owe(self._forget_job)
        self._arm(False)
        self._loop.remove_reader(self._bell)
        self._bell.close()
        await self._containers.close()
        self._ledger.close()
        places.set_live(self._job, False)
        os.close(self._kept)
        self._changes.put_nowait(None)

    def _forget_job(self) -> None:
        self._ledger.forget(self._job)
        wake(self._ledger.waiters())  # the first to look serves them all

    @property
    def template(self) -> int | None:
        """The process id of the template, for those who look after processes."""
        return self._containers.template

    # -- the line --

    async def _size(self, gpus: bool) -> Capacity:
        return await asyncio.to_thread(self._capacity, True) if gpus else self._capacity(False)

    def _without_refused(self, requests: Sequence[Request], capacity: Capacity) -> list[Request]:
        node = places.node_name()
        refused: dict[Key, str] = {}
        for unit in queue.line([], [queue.Ask(self._job, one, 0, number) for number, one in enumerate(requests)]):
            if why := queue.refusal(capacity, [ask.request for ask in unit.need]):
                refused |= {(ask.request.task, ask.request.serial): why for ask in (*unit.need, *unit.growth)}
        for one in requests:
            if node in one.nodes.get("exclude", ()):
                refused[one.task, one.serial] = (
                    f"{one.task}: nodes.exclude names this machine, {node}, the only one of the local engine"
                )
        for key, why in refused.items():
            if key not in self._refused:
                self._refused.add(key)
                self._changes.put_nowait(Refused(*key, why))
        return [one for one in requests if (one.task, one.serial) not in refused]

    def _turn(self) -> None:
        """Serve the line, start what we got, and say why we wait for the rest; with devices in line as soon as they have been looked at."""
        if self._closed or self._put_off:
            return
        with self._ledger_may_fail():
            self._settle()
            if not any(ask.request.gpus for ask in self._ledger.asks()):
                self._serve(self._capacity(False))
            elif self._looking is None:
                self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        try:
            capacity = await asyncio.to_thread(self._capacity, True)
            with self._ledger_may_fail():
                self._serve(capacity)
        except Exception as error:  # noqa: BLE001 - nobody awaits us
            self._failed(error)
        finally:
            self._looking = None

    def _serve(self, capacity: Capacity) -> None:
        wake(self._ledger.serve(capacity) - {self._job})
        for entry in self._ledger.entries(self._job):
            if entry.key not in self._started and not entry.running:
                self._start(entry.key, entry.hold)
        self._tell_waiting(capacity)

    def _again(self) -> None:
        """A turn that nobody awaits."""
        try:
            self._turn()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must be heard
            self._failed(error)

    def _arm(self, wanted: bool) -> None:
        """Have another turn after the poll, or none."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._poll, self._polled) if wanted else None

    def _polled(self) -> None:
        self._put_off = False
        self._again()

    def _start(self, key: Key, hold: queue.Hold) -> None:
        if self._requests.pop(key, None) is None:  # granted by another's turn, but no longer wanted
            self._ledger.free(self._job, *key)
            return
        self._started[key] = hold.devices
        if hold.request.gang:
            self._gangs[key] = hold.request.gang
        self._idle.clear()
        if (agent := self._begun_before(key)) is not None:
            self._containers.adopt(*key, agent)
            self._began(key, agent)
        else:
            self._containers.start(*key, self._spec(hold.request, hold.devices))

    def _begun_before(self, key: Key) -> Process | None:
        """The agent that an earlier master ordered for the same ask, and died before it knew of it."""
        living = processes.living(self._job, processes.AGENT) if self._epoch > 1 else []
        return next((made.process for made in living if (made.task, made.serial) == key), None)

    def _tell_waiting(self, capacity: Capacity) -> None:
        self._arm(bool(self._requests))
        if not self._requests:
            self._last_waiting = None
            self._watch(set())
            return
        entries, asks = self._ledger.entries(), self._ledger.asks()
        now = queue.waiting(capacity, [entry.hold for entry in entries], asks, self._job)
        self._tell(now)
        masters, ahead = self._ledger.masters(), {ask.job for ask in asks} - {self._job}
        holders = {entry.process for entry in entries if entry.hold.job != self._job}
        self._watch(holders | {masters[job] for job in ahead})

    def _tell(self, waiting: Waiting | None) -> None:
        if waiting is not None and waiting != self._last_waiting:
            self._changes.put_nowait(waiting)
        self._last_waiting = waiting

    # -- a ledger that cannot be written --

    def _owe(self, write: Callable[[], None]) -> None:
        """Have the ledger told of something: now, or where that fails after the poll."""
        self._owed.append(write)
        if not self._put_off:
            with self._ledger_may_fail():
                self._settle()

    def _settle(self) -> None:
        while self._owed:
            self._owed[0]()
            del self._owed[0]

    @contextlib.contextmanager
    def _ledger_may_fail(self) -> Iterator[None]:
        """What is left out for that reason is done by the turn after the poll; until then nobody waits for the ledger again."""
        try:
            yield
        except sqlite3.Error as error:
            if not self._ledger_trouble:
                log.warning("the ledger cannot be used, and is tried again: %s", error)
            self._ledger_trouble, self._put_off = str(error), True
            self._arm(True)
            if self._requests:
                self._tell(Waiting("ledger", "", "", f"the ledger of this machine cannot be used: {error}", 0))
        else:
            if self._ledger_trouble:
                log.warning("the ledger can be used again")
            self._ledger_trouble = ""

    def _failed(self, error: BaseException) -> None:
        self._changes.put_nowait(error)

    # -- containers --

    def _began(self, key: Key, agent: Process) -> None:
        self._owe(lambda: self._ledger.run(self._job, *key, agent))
        granted = Granted(*key, f"local/{agent.pid}", places.node_name(), self._started[key])
        if (gang := self._gangs.pop(key, "")) and key not in self._leaving:
            self._together.setdefault(gang, []).append(granted)
            self._tell_together(gang)
        else:
            self._changes.put_nowait(granted)
        if key in self._leaving:
            self._end(key)

    def _tell_together(self, gang: str) -> None:
        """A gang is as large as what is granted at once: tell of its members when all that were granted have begun."""
        if gang not in self._gangs.values():
            for granted in self._together.pop(gang, ()):
                self._changes.put_nowait(granted)

    def _ended(self, key: Key, status: int | None, reason: str | None, figures: Mapping[str, Any]) -> None:
        self._started.pop(key, None)
        if not self._started:
            self._idle.set()
        self._leaving.discard(key)
        if gang := self._gangs.pop(key, ""):
            self._tell_together(gang)
        if self._closed:
            return
        self._changes.put_nowait(ContainerExited(*key, status, reason, figures))
        self._owe(lambda: self._free(key))
        self._again()

    def _free(self, key: Key) -> None:
        self._ledger.free(self._job, *key)
        wake(self._ledger.waiters() - {self._job})

    def _end(self, key: Key) -> None:
        self._containers.send(*key, signal.SIGTERM)
        self._loop.call_later(self._patience, self._insist, key)

    def _insist(self, key: Key) -> None:
        if key in self._leaving:
            self._containers.send(*key, signal.SIGKILL)

    # -- being woken --

    def _bind(self) -> None:
        path = places.socket_path(self._job, _WAKE)
        path.unlink(missing_ok=True)
        self._bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._bell.bind(os.fspath(path))
        self._loop.add_reader(self._bell, self._woken)

    def _woken(self) -> None:
        while True:
            try:
                self._bell.recv(16)
            except BlockingIOError:
                break
        self._again()

    def _watch(self, wanted: set[Process]) -> None:
        """Be told when any of these dies."""
        for process in set(self._pidfds) - wanted:
            self._forget(process)
        for process in wanted - set(self._pidfds):
            try:
                descriptor = linux.pidfd(process.pid)
            except ProcessLookupError:  # died since the turn
                self._loop.call_soon(self._again)
                continue
            self._pidfds[process] = descriptor
            self._loop.add_reader(descriptor, self._holder_died, process)

    def _holder_died(self, process: Process) -> None:
        self._forget(process)
        self._again()

    def _forget(self, process: Process) -> None:
        descriptor = self._pidfds.pop(process)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)


def wake(jobs: set[str]) -> None:
    """Have the masters of these jobs look at the line. A master that is dead, or has been told and not looked yet, needs nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as bell:
        for job in jobs:
            try:
                bell.sendto(b"", os.fspath(places.runtime_dir() / job / f"{_WAKE}.sock"))
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                continue
