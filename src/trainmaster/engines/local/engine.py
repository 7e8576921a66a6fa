"""The local engine as a master uses it: its asks in the ledger, its containers from the template.

Each master serves the whole line in its turns (see `ledger`) and wakes the masters of the jobs that it granted something, by an empty
datagram to `<runtime>/<job>/wake.sock`. A master that waits also watches, by pidfd, every process that holds something, and so knows of a
death at once. A slow poll backs up both.

Changes of containers are reported even while the ledger cannot be written (a full disk, a lock that another process holds). The missing
writes are kept in order, and retried with each poll. Any other failure of ours ends the stream of changes with that error, and so the
master, whose successor begins anew. The driver of accelerators is asked in a thread, and only while an ask in line needs one; while it does
not answer, the job waits for it, and asks again with each poll.
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
from shlex import quote
from typing import Any

from trainmaster.core.machine.stimuli import Change, ContainerExited, Granted, Key, Refused, Waiting, Warned
from trainmaster.engines.changes import Changes
from trainmaster.engines.contract import AgentSpec, Free, Holder, MasterSide, Request
from trainmaster.engines.local import queue
from trainmaster.engines.local.containers import Containers
from trainmaster.engines.local.ledger import Ledger
from trainmaster.engines.local.template import Link
from trainmaster.host import limits, linux, places, ports, processes
from trainmaster.host.machine import Capacity, DriverSilent, machine
from trainmaster.host.processes import Process
from trainmaster.log.storage import Damaged
from trainmaster.runtime.network.listeners import BELL

_WAKE = "wake"
_UNUSABLE = (sqlite3.Error, Damaged)  # what a ledger raises that may be usable later
NOTICE = 5.0  # s between the warning and the end of a container that is taken back for another job
_LEDGER_WAIT = 2.0  # s that the loop waits for another's turn; agents notice our silence after many times that
log = logging.getLogger(__name__)


class LocalMaster(MasterSide):
    """`MasterSide` on this machine. Submit refuses a request's `nodes.labels`, for there are none; `nodes.exclude` may name this machine.

    `spec(request, devices)` returns the spec of a container's agent. `link` is the template forked before the loop began, if there is one;
    `command` starts another. `patience`: seconds that an agent may take to end once it was asked to.
    """

    def __init__(
        self,
        job: str,
        spec: AgentSpec,
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
        self._changes = Changes()
        self._requests: dict[Key, Request] = {}
        self._unsized: Sequence[Request] | None = None  # asks, until it is known how many devices there are
        self._started: dict[
            Key, tuple[str, ...]
        ] = {}  # containers that run, or that the template is to start -> devices
        self._gangs: dict[Key, str] = {}  # members of a gang that are being started
        self._together: dict[
            str, list[Granted]
        ] = {}  # gang -> its members that have begun, while others are being started
        self._leaving: set[Key] = set()
        self._reclaimed: dict[Key, str] = {}  # containers that are taken back -> the job that they give way to
        self._refused: set[Key] = set()
        self._last_waiting: Waiting | None = None
        self._pidfds: dict[Process, int] = {}
        self._unwritten: list[Callable[[], None]] = []  # writes that the ledger still lacks, in order
        self._ledger_trouble = ""
        self._ledger_paused = False  # whether the ledger is left alone until the poll
        self._device_check: asyncio.Task[None] | None = None  # looks for free devices
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._idle = asyncio.Event()  # set while no container is held

    # -- the contract --

    async def open(self, epoch: int) -> Sequence[Holder]:
        """Take part as the master of this epoch. Raises EngineFailed where the ledger knows a later one."""
        self._loop, self._epoch = asyncio.get_running_loop(), epoch
        self._ledger = Ledger()
        with places.locked():
            self._write_ledger(self._enter)
            self._ledger.wait_at_most(_LEDGER_WAIT)
            processes.mark(self._job, processes.MASTER, "", 0, os.getpid())
            places.note_state_dir(self._job)
        places.set_live(self._job, True)
        self._kept = places.hold_runtime_dir()
        self._bind()
        self._containers = Containers(self._job, self._link, self._command, self._began, self._ended, self._failed)
        if epoch > 1:
            await asyncio.to_thread(limits.remove_orphaned_groups, self._job)
        holders = []
        for key, process, devices in self._running():
            self._started[key] = devices
            self._containers.adopt(*key, process)
            holders.append(Holder(*key, f"local/{process.pid}", places.node_name()))
        return holders

    def _enter(self) -> None:
        self._ledger.enter(self._job, self._epoch, processes.this_process())

    def _enter_anew(self) -> None:
        """Enter what the ledger had of us before it was damaged. It held nothing: it is made anew once no agent lives."""
        self._enter()
        self._ledger.ask(self._job, self._epoch, [*self._requests.values()])

    def _running(self) -> list[tuple[Key, Process, tuple[str, ...]]]:
        """Return the containers of earlier masters that run: their agents, and their devices as far as the ledger tells."""
        try:
            entries = self._ledger.entries(self._job)
        except Damaged:
            return [
                ((mark.task, mark.serial), mark.process, ()) for mark in processes.living(self._job, processes.AGENT)
            ]
        return [
            (entry.key, entry.process, entry.hold.devices) for entry in entries if entry.running and entry.process.alive
        ]

    async def ask(self, requests: Sequence[Request]) -> None:
        """State the whole set of asks not granted yet; refuse at once those that this machine can never grant."""
        if any(request.gpus for request in requests):
            self._unsized = requests
        else:
            self._unsized = None
            self._take_asks(requests, self._capacity(False))
        self._turn()

    def _take_asks(self, requests: Sequence[Request], capacity: Capacity) -> None:
        fresh = [request for request in requests if (request.task, request.serial) not in self._started]
        grantable = self._refuse_impossible(fresh, capacity)
        self._requests = {(request.task, request.serial): request for request in grantable}
        self._write_ledger(lambda: self._ledger.ask(self._job, self._epoch, grantable))

    async def release(self, task: str, serial: int) -> None:
        """Take a container back: SIGTERM to the agent, SIGKILL after `patience`. One that is not held is reported as ended at once."""
        key = task, serial
        if key in self._started:
            if key not in self._leaving:
                self._leaving.add(key)
                self._end(key)
            return
        self._requests.pop(key, None)
        self._ended(key, None, None, {})

    def changes(self) -> AsyncIterator[Change]:
        """Return the changes, in order, until `close`; they raise the error after which no more of them can be known."""
        return self._changes.stream()

    async def free(self) -> Sequence[Free]:
        """Return this machine, the one node."""
        try:
            capacity = await asyncio.to_thread(self._capacity, True)
        except DriverSilent:
            capacity = self._capacity(False)
        try:
            free = queue.free(capacity, self._ledger.holds())
        except _UNUSABLE:  # what is free is not known
            return []
        return [
            Free(
                places.node_name(), capacity.cores, capacity.memory, len(capacity.devices),
                max(0, free.cores) / 1000, max(0, free.memory), free.gpus,
            )
        ]  # fmt: skip

    def tasks_of_others(self) -> int:
        """Return how many tasks of other jobs share this machine's cores now; 0 where the ledger does not say."""
        with contextlib.suppress(*_UNUSABLE):
            return self._ledger.held_by_others(self._job)
        return 0

    async def close(self, state: str) -> None:
        """Give everything back; the sweep then takes the job as finished. Its runtime folder stays for the master, which still serves."""
        if self._closed:
            return
        self._requests.clear()
        self._write_ledger(lambda: self._ledger.ask(self._job, self._epoch, []))
        for key in list(self._started):
            await self.release(*key)
        if self._started:
            with contextlib.suppress(TimeoutError):  # we do not stay for a process that the kernel does not end
                await asyncio.wait_for(self._idle.wait(), self._patience + 10)
        self._closed = True
        if self._device_check is not None:
            self._device_check.cancel()
        self._watch(set())
        await asyncio.to_thread(limits.remove_groups, self._job)
        await asyncio.to_thread(ports.remove_unheld)  # of agents that were killed
        self._ledger_paused = False
        self._write_ledger(self._forget_job)
        self._arm(False)
        self._loop.remove_reader(self._bell)
        self._bell.close()
        await self._containers.close()
        self._ledger.close()
        places.set_live(self._job, False)
        os.close(self._kept)
        self._changes.end()

    def _forget_job(self) -> None:
        self._ledger.forget(self._job)
        wake(self._ledger.waiters())  # the first that looks serves them all

    @property
    def template(self) -> int | None:
        """The process id of the template, for callers that look after processes."""
        return self._containers.template

    # -- the line --

    def _refuse_impossible(self, requests: Sequence[Request], capacity: Capacity) -> list[Request]:
        """Report those that this machine can never grant as refused, once each; return the others."""
        node = places.node_name()
        refused: dict[Key, str] = {}
        for unit in queue.line(
            [], [queue.Ask(self._job, request, 0, number) for number, request in enumerate(requests)]
        ):
            if why := queue.refusal(capacity, [ask.request for ask in unit.need]):
                refused |= {(ask.request.task, ask.request.serial): why for ask in (*unit.need, *unit.growth)}
        for request in requests:
            if node in request.nodes.get("exclude", ()):
                refused[request.task, request.serial] = (
                    f"{request.task}: nodes.exclude names this machine, {node}, the only one of the local engine"
                )
        for key, why in refused.items():
            if key not in self._refused:
                self._refused.add(key)
                self._changes.report(Refused(*key, why))
        return [request for request in requests if (request.task, request.serial) not in refused]

    def _turn(self) -> None:
        """Serve the line, start what we got, and report why we wait for the rest. With devices in line, their driver is asked first."""
        if self._closed or self._ledger_paused:
            return
        with self._ledger_may_fail():
            self._write_pending()
            if self._unsized is None and not any(ask.request.gpus for ask in self._ledger.asks()):
                self._serve(self._capacity(False))
            elif self._device_check is None:
                self._device_check = self._loop.create_task(self._serve_with_devices())

    async def _serve_with_devices(self) -> None:
        try:
            capacity = await asyncio.to_thread(self._capacity, True)
            if self._unsized is not None:
                requests, self._unsized = self._unsized, None
                self._take_asks(requests, capacity)
            with self._ledger_may_fail():
                self._serve(capacity)
        except DriverSilent as error:
            self._arm(True)
            self._report(Waiting("devices", "", "", error.message, 0))
        except Exception as error:  # noqa: BLE001 - nobody awaits us
            self._failed(error)
        finally:
            self._device_check = None

    def _serve(self, capacity: Capacity) -> None:
        wake(self._ledger.serve(capacity) - {self._job})
        for entry in self._ledger.entries(self._job):
            if entry.key not in self._started and not entry.running:
                self._start(entry.key, entry.hold)
            if entry.hold.yields_to and entry.key in self._started and entry.key not in self._reclaimed:
                self._give_way(entry.key, entry.hold.yields_to)
        self._report_waiting(capacity)

    def _take_turn(self) -> None:
        """Take a turn that nobody awaits; an error ends the stream of changes."""
        try:
            self._turn()
        except Exception as error:  # noqa: BLE001 - every error must be reported
            self._failed(error)

    def _arm(self, is_needed: bool) -> None:
        """Set the timer for another turn after the poll, or cancel it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._poll, self._poll_over) if is_needed else None

    def _poll_over(self) -> None:
        self._ledger_paused = False
        self._take_turn()

    def _start(self, key: Key, hold: queue.Hold) -> None:
        if self._requests.pop(key, None) is None:  # granted by another's turn, but no longer asked for
            self._ledger.free(self._job, *key)
            return
        self._started[key] = hold.devices
        if hold.request.gang:
            self._gangs[key] = hold.request.gang
        self._idle.clear()
        if (agent := self._agent_of_earlier_master(key)) is not None:
            self._containers.adopt(*key, agent)
            self._began(key, agent)
        else:
            self._containers.start(*key, self._spec(hold.request, hold.devices))

    def _give_way(self, key: Key, job: str) -> None:
        """Warn of the end of a container that is taken back for another job, and end it after `NOTICE`."""
        self._reclaimed[key] = job
        if key not in self._leaving:
            self._changes.report(Warned(*key, NOTICE, "preempted", {"by": job}))
            self._loop.call_later(NOTICE, self._reclaim, key)

    def _reclaim(self, key: Key) -> None:
        if key in self._started and key not in self._leaving:
            self._leaving.add(key)
            self._end(key)

    def _agent_of_earlier_master(self, key: Key) -> Process | None:
        """Return the agent for the same ask that an earlier master ordered and died before it knew of; None where there is none."""
        marks = processes.living(self._job, processes.AGENT) if self._epoch > 1 else []
        return next((mark.process for mark in marks if (mark.task, mark.serial) == key), None)

    def _report_waiting(self, capacity: Capacity) -> None:
        self._arm(bool(self._requests))
        if not self._requests:
            self._last_waiting = None
            self._watch(set())
            return
        entries, asks = self._ledger.entries(), self._ledger.asks()
        waiting = queue.waiting(capacity, [entry.hold for entry in entries], asks, self._job, _named)
        self._report(waiting)
        masters, ahead = self._ledger.masters(), {ask.job for ask in asks} - {self._job}
        holders = {entry.process for entry in entries if entry.hold.job != self._job}
        self._watch(holders | {masters[job] for job in ahead})

    def _report(self, waiting: Waiting | None) -> None:
        if waiting is not None and waiting != self._last_waiting:
            self._changes.report(waiting)
        self._last_waiting = waiting

    # -- a ledger that cannot be written --

    def _write_ledger(self, write: Callable[[], None]) -> None:
        """Do a write to the ledger: now, or, where that fails, after the poll."""
        self._unwritten.append(write)
        if not self._ledger_paused:
            with self._ledger_may_fail():
                self._write_pending()

    def _write_pending(self) -> None:
        while self._unwritten:
            self._unwritten[0]()
            del self._unwritten[0]

    @contextlib.contextmanager
    def _ledger_may_fail(self) -> Iterator[None]:
        """Catch failures of the ledger; the turn after the poll makes up for them, and until then nobody waits for the ledger again."""
        try:
            yield
        except _UNUSABLE as error:
            trouble = "; ".join(line.strip() for line in str(error).splitlines())
            if not self._ledger_trouble:
                log.warning("the ledger cannot be used, and is tried again: %s", trouble)
            self._ledger_trouble, self._ledger_paused = trouble, True
            if isinstance(error, Damaged) and self._enter_anew not in self._unwritten:
                self._unwritten.insert(0, self._enter_anew)
            self._arm(True)
            if self._requests:
                self._report(Waiting("ledger", "", "", f"the ledger of this machine cannot be used: {trouble}", 0))
        else:
            if self._ledger_trouble:
                log.warning("the ledger can be used again")
            self._ledger_trouble = ""

    def _failed(self, error: BaseException) -> None:
        self._changes.fail(error)

    # -- containers --

    def _began(self, key: Key, agent: Process) -> None:
        self._write_ledger(lambda: self._ledger.run(self._job, *key, agent))
        granted = Granted(*key, f"local/{agent.pid}", places.node_name(), self._started[key])
        if (gang := self._gangs.pop(key, "")) and key not in self._leaving:
            self._together.setdefault(gang, []).append(granted)
            self._report_gang(gang)
        else:
            self._changes.report(granted)
        if key in self._leaving:
            self._end(key)

    def _report_gang(self, gang: str) -> None:
        """Report a gang's members together, when all that were granted have begun: a gang is as large as what is granted at once."""
        if gang not in self._gangs.values():
            for granted in self._together.pop(gang, ()):
                self._changes.report(granted)

    def _ended(self, key: Key, status: int | None, reason: str | None, figures: Mapping[str, Any]) -> None:
        self._started.pop(key, None)
        if (taker := self._reclaimed.pop(key, "")) and not self._closed:
            reason, figures = "preempted", {"by": taker}
        if not self._started:
            self._idle.set()
        self._leaving.discard(key)
        if gang := self._gangs.pop(key, ""):
            self._report_gang(gang)
        if self._closed:
            return
        self._changes.report(ContainerExited(*key, status, reason, figures))
        self._write_ledger(lambda: self._free(key))
        self._take_turn()

    def _free(self, key: Key) -> None:
        self._ledger.free(self._job, *key)
        wake(self._ledger.waiters() - {self._job})

    def _end(self, key: Key) -> None:
        self._containers.send(*key, signal.SIGTERM)
        self._loop.call_later(self._patience, self._kill_if_leaving, key)

    def _kill_if_leaving(self, key: Key) -> None:
        if key in self._leaving:
            self._containers.send(*key, signal.SIGKILL)

    # -- wake-ups --

    def _bind(self) -> None:
        path = places.socket_path(self._job, _WAKE)
        self._bell = BELL.at_path(os.fspath(path))
        self._bell.setblocking(False)
        self._loop.add_reader(self._bell, self._on_wake)

    def _on_wake(self) -> None:
        while True:
            try:
                self._bell.recv(16)
            except BlockingIOError:
                break
        self._take_turn()

    def _watch(self, holders: set[Process]) -> None:
        """Watch these processes, and no others: the death of any leads to a turn."""
        for process in set(self._pidfds) - holders:
            self._forget(process)
        for process in holders - set(self._pidfds):
            try:
                descriptor = linux.pidfd(process.pid)
            except ProcessLookupError:  # died since the turn
                self._loop.call_soon(self._take_turn)
                continue
            self._pidfds[process] = descriptor
            self._loop.add_reader(descriptor, self._holder_died, process)

    def _holder_died(self, process: Process) -> None:
        self._forget(process)
        self._take_turn()

    def _forget(self, process: Process) -> None:
        descriptor = self._pidfds.pop(process)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)


def wake(jobs: set[str]) -> None:
    """Wake the masters of these jobs, so that they look at the line. A master that is dead, or has a datagram unread, needs none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as bell:
        for job in jobs:
            try:
                bell.sendto(b"", os.fspath(places.runtime_dir() / job / f"{_WAKE}.sock"))
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                continue


def _named(job: str) -> str:
    """Return a job's id, and how to find and end it where `tm list` does not show it."""
    state = places.other_state_dir(job)
    return f"{job} (TRAINMASTER_STATE_DIR={quote(state)} tm kill {job} ends it)" if state else job
