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
from collections.abc import Callable, Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from trainmaster.core.containers import GONE, PLACED, RUNNING, Deletion, End, Habits, Request, Seen
from trainmaster.core.machine.stimuli import ContainerExited, Key, Waiting, Warned
from trainmaster.engines.containers import Containers
from trainmaster.engines.contract import AgentSpec, Free, MasterSide
from trainmaster.engines.local import queue
from trainmaster.engines.local.agents import Agents
from trainmaster.engines.local.launch import AGENT
from trainmaster.engines.local.ledger import Ledger
from trainmaster.engines.local.template import Link, command
from trainmaster.host import limits, linux, places, ports, processes
from trainmaster.host.machine import Capacity, DriverSilent, machine
from trainmaster.host.processes import Process
from trainmaster.log.storage import Damaged
from trainmaster.runtime.network.listeners import BELL

_WAKE = "wake"
_UNUSABLE = (sqlite3.Error, Damaged)  # what a ledger raises that may be usable later
NOTICE = 5.0  # s between the warning and the end of a container that is taken back for another job
_UNKILLED = 10.0  # s that a process which was killed may take to end
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
        self.habits = Habits(closing=patience + _UNKILLED)
        self._job, self._spec, self._command, self._link = job, spec, command, link
        self._capacity, self._poll, self._patience = capacity, poll, patience
        self._epoch = 0
        self._unsized: list[Request] = []  # asks, until it is known how many devices there are
        self._held: dict[Key, tuple[str, ...]] = {}  # containers that have their place -> devices
        self._ordered: set[Key] = set()  # those of them that run, or that the template is to start
        self._going: set[Key] = set()
        self._reclaimed: dict[Key, str] = {}  # containers that are taken back -> the job that they give way to
        self._last_waiting: Waiting | None = None
        self._pidfds: dict[Process, int] = {}
        self._unwritten: list[Callable[[], None]] = []  # writes that the ledger still lacks, in order
        self._ledger_trouble = ""
        self._ledger_paused = False  # whether the ledger is left alone until the poll
        self._device_check: asyncio.Task[None] | None = None  # looks for free devices
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # -- the contract --

    async def open(self, epoch: int, containers: Containers) -> Sequence[Seen]:
        """Take part as the master of this epoch. Raises EngineFailed where the ledger knows a later one."""
        self._loop, self._epoch, self._containers = asyncio.get_running_loop(), epoch, containers
        self._ledger = Ledger()
        with places.locked():
            self._write_ledger(self._enter)
            self._ledger.wait_at_most(_LEDGER_WAIT)
            processes.mark(self._job, processes.MASTER, "", 0, os.getpid())
            places.note_state_dir(self._job)
        places.set_live(self._job, True)
        self._kept = places.hold_runtime_dir()
        self._bind()
        self._agents = Agents(self._job, self._link, self._command, self._began, self._ended, containers.fail)
        if epoch > 1:
            await asyncio.to_thread(limits.remove_orphaned_groups, self._job)
        seen = []
        for key, process, devices in self._running():
            self._held[key] = devices
            self._ordered.add(key)
            self._agents.adopt(*key, process)
            seen.append(self._sight(key, RUNNING, process, devices))
        return seen

    def _sight(
        self, key: Key, phase: str, agent: Process | None = None, devices: tuple[str, ...] = (), end: End | None = None
    ) -> Seen:
        name = "" if agent is None else f"local/{agent.pid}"
        return Seen(key, phase, f"{key[0]}/{key[1]}", places.node_name(), devices, name, end=end)

    def _enter(self) -> None:
        self._ledger.enter(self._job, self._epoch, processes.this_process())

    def _enter_anew(self) -> None:
        """Enter what the ledger had of us before it was damaged. It held nothing: it is made anew once no agent lives."""
        self._enter()
        self._ledger.ask(self._job, self._epoch, self._containers.book.asked())

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

    def create(self, requests: Sequence[Request]) -> None:
        """Enter asks in the ledger; refuse those that this machine can never grant."""
        if any(request.gpus for request in requests):
            self._unsized += requests
        else:
            self._take_asks(requests, self._capacity(False))
        self._take_turn()

    def _take_asks(self, requests: Sequence[Request], capacity: Capacity) -> None:
        self._refuse_impossible(requests, capacity)
        self._write_asks()

    def _write_asks(self) -> None:
        unsized = {request.key for request in self._unsized}
        sized = [request for request in self._containers.book.asked() if request.key not in unsized]
        self._write_ledger(lambda: self._ledger.ask(self._job, self._epoch, sized))

    def start(self, requests: Sequence[Request]) -> None:
        for request in requests:
            key = request.key
            self._ordered.add(key)
            if (agent := self._agent_of_earlier_master(key)) is not None:
                self._agents.adopt(*key, agent)
                self._began(key, agent)
            else:
                self._agents.start(*key, self._spec(request, self._held[key]))

    def delete(self, deletions: Sequence[Deletion]) -> None:
        """Take containers back: SIGTERM to the agent, SIGKILL after `patience`. One that has not begun is gone at once."""
        for key in (deletion.key for deletion in deletions):
            if key in self._ordered:
                self._end(key)
            else:
                self._unsized = [request for request in self._unsized if request.key != key]
                self._ended(key, None, None, {})

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
        await self._agents.close()
        self._ledger.close()
        places.set_live(self._job, False)
        os.close(self._kept)

    def _forget_job(self) -> None:
        self._ledger.forget(self._job)
        wake(self._ledger.waiters())  # the first that looks serves them all

    @property
    def template(self) -> int | None:
        """The process id of the template, for callers that look after processes."""
        return self._agents.template

    # -- the line --

    def _refuse_impossible(self, requests: Sequence[Request], capacity: Capacity) -> None:
        """Refuse what this machine can never grant."""
        node = places.node_name()
        asks = [queue.Ask(self._job, request, 0, number) for number, request in enumerate(requests)]
        refused: dict[Key, str] = {}
        for unit in queue.line([], asks):
            if why := queue.refusal(capacity, [ask.request for ask in unit.need]):
                refused |= {ask.request.key: why for ask in (*unit.need, *unit.growth)}
        for request in requests:
            if node in request.nodes.get("exclude", ()):
                why = f"{request.task}: nodes.exclude names this machine, {node}, the only one of the local engine"
                refused[request.key] = why
        for key, why in refused.items():
            self._containers.refuse(key, why)

    def _turn(self) -> None:
        """Serve the line, start what we got, and report why we wait for the rest. With devices in line, their driver is asked first."""
        if self._closed or self._ledger_paused:
            return
        with self._ledger_may_fail():
            self._write_pending()
            if not self._unsized and not any(ask.request.gpus for ask in self._ledger.asks()):
                self._serve(self._capacity(False))
            elif self._device_check is None:
                self._device_check = self._loop.create_task(self._serve_with_devices())

    async def _serve_with_devices(self) -> None:
        try:
            capacity = await asyncio.to_thread(self._capacity, True)
            if self._unsized:
                requests, self._unsized = self._unsized, []
                self._take_asks(requests, capacity)
            with self._ledger_may_fail():
                self._serve(capacity)
        except DriverSilent as error:
            self._arm(True)
            self._report(Waiting("devices", "", "", error.message, 0))
        except Exception as error:  # noqa: BLE001 - nobody awaits us
            self._containers.fail(error)
        finally:
            self._device_check = None

    def _serve(self, capacity: Capacity) -> None:
        wake(self._ledger.serve(capacity) - {self._job})
        placed: dict[Key, tuple[str, ...]] = {}
        for entry in self._ledger.entries(self._job):
            if entry.key not in self._held and not entry.running:
                placed[entry.key] = entry.hold.devices
            if entry.hold.yields_to and entry.key in self._held and entry.key not in self._reclaimed:
                self._give_way(entry.key, entry.hold.yields_to)
        self._held |= placed
        self._containers.see(*(self._sight(key, PLACED, None, devices) for key, devices in placed.items()))
        self._report_waiting(capacity)

    def _take_turn(self) -> None:
        """Take a turn that nobody awaits; an error ends the stream of changes."""
        try:
            self._turn()
        except Exception as error:  # noqa: BLE001 - every error must be reported
            self._containers.fail(error)

    def _arm(self, is_needed: bool) -> None:
        """Set the timer for another turn after the poll, or cancel it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._poll, self._poll_over) if is_needed else None

    def _poll_over(self) -> None:
        self._ledger_paused = False
        self._take_turn()

    def _give_way(self, key: Key, job: str) -> None:
        """Warn of the end of a container that is taken back for another job, and end it after `NOTICE`."""
        self._reclaimed[key] = job
        if key not in self._going:
            self._containers.report(Warned(*key, NOTICE, "preempted", {"by": job}))
            self._loop.call_later(NOTICE, self._reclaim, key)

    def _reclaim(self, key: Key) -> None:
        if key in self._held:
            self._end(key)

    def _agent_of_earlier_master(self, key: Key) -> Process | None:
        """Return the agent for the same ask that an earlier master ordered and died before it knew of; None where there is none."""
        marks = processes.living(self._job, processes.AGENT) if self._epoch > 1 else []
        return next((mark.process for mark in marks if (mark.task, mark.serial) == key), None)

    def _report_waiting(self, capacity: Capacity) -> None:
        is_waiting = bool(self._containers.book.asked())
        self._arm(is_waiting)
        if not is_waiting:
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
            self._containers.report(waiting)
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
            if self._containers.book.asked():
                self._report(Waiting("ledger", "", "", f"the ledger of this machine cannot be used: {trouble}", 0))
        else:
            if self._ledger_trouble:
                log.warning("the ledger can be used again")
            self._ledger_trouble = ""

    # -- containers --

    def _began(self, key: Key, agent: Process) -> None:
        self._write_ledger(lambda: self._ledger.run(self._job, *key, agent))
        self._containers.see(self._sight(key, RUNNING, agent, self._held[key]))
        if key in self._going:
            self._agents.send(*key, signal.SIGTERM)

    def _ended(self, key: Key, status: int | None, reason: str | None, figures: Mapping[str, Any]) -> None:
        self._held.pop(key, None)
        self._ordered.discard(key)
        self._going.discard(key)
        if self._closed:
            return
        if taker := self._reclaimed.pop(key, ""):
            reason, figures = "preempted", {"by": taker}
        self._containers.see(self._sight(key, GONE, end=ContainerExited(*key, status, reason, figures)))
        self._write_ledger(lambda: self._free(key))
        self._take_turn()

    def _free(self, key: Key) -> None:
        self._ledger.free(self._job, *key)
        wake(self._ledger.waiters() - {self._job})

    def _end(self, key: Key) -> None:
        if key not in self._going:
            self._going.add(key)
            self._agents.send(*key, signal.SIGTERM)
            self._loop.call_later(self._patience, self._kill_if_going, key)

    def _kill_if_going(self, key: Key) -> None:
        if key in self._going:
            self._agents.send(*key, signal.SIGKILL)

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


def master_side(job: str, spec: AgentSpec, link: Link | None) -> LocalMaster:
    return LocalMaster(job, spec, command(AGENT), link)


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
