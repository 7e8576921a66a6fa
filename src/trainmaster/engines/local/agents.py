"""The agents of a master on this machine: forked by the template, or taken over from an earlier master.

The template reports the exits of its own agents, with their status, when none of their processes is left. If the template dies, its agents
go on. They are then watched by pidfd, like those of an earlier master: exact and at once, but without a status, and we end the processes
that they leave behind. Their parent is then init; the first template's parent is the command that submitted. We can wait for neither.
An order that a dead template had not answered counts as a lost container: nobody can know whether it was carried out, and a stray agent is
refused when it calls the master. A new template is started at once, so that the next order is a fork again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainmaster.core.machine.stimuli import Key
from trainmaster.engines.local.template import Link, spawn
from trainmaster.engines.statuses import REASONS
from trainmaster.host import limits, linux, processes
from trainmaster.host.processes import Process

_PATIENCE = 5.0  # s that a template may take to end after we close its link


class Agents:
    """The agents of one job. `began(key, process)` and `ended(key, status, reason, figures)` are called on the loop.

    So is `failed(error)`, where this object cannot go on: a master that gets no more news of its containers must not go on as if nothing
    happened to them.
    """

    def __init__(
        self,
        job: str,
        link: Link | None,
        command: Sequence[str],
        began: Callable[[Key, Process], None],
        ended: Callable[[Key, int | None, str | None, Mapping[str, Any]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._job, self._command = job, command
        self._began, self._ended, self._failed = began, ended, failed
        self._link = link
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._orders: dict[Key, bytes] = {}  # not answered yet
        self._running: dict[Key, Process] = {}
        self._watched: dict[Key, int] = {}  # -> pidfd
        self._finishing: set[asyncio.Task[None]] = set()
        self._closing = False
        self._loop = asyncio.get_running_loop()
        if link is not None:
            self._attach(link)

    @property
    def template(self) -> int | None:
        """The template's process id."""
        return None if self._link is None else self._link.pid

    def start(self, task: str, serial: int, spec: Mapping[str, Any]) -> None:
        """Fork an agent; `began` or `ended` follows."""
        order = json.dumps({"task": task, "serial": serial, "spec": spec}).encode() + b"\n"
        self._orders[task, serial] = order
        if self._link is None:
            self._attach(spawn(self._command))
        elif self._writer is not None:
            self._writer.write(order)

    def adopt(self, task: str, serial: int, agent: Process) -> None:
        """Adopt an agent that an earlier master started."""
        self._running[task, serial] = agent
        self._watch((task, serial), agent)

    def send(self, task: str, serial: int, number: int) -> None:
        """Send a signal to an agent."""
        if (agent := self._running.get((task, serial))) is not None:
            processes.send(agent, number)

    async def close(self) -> None:
        """Close the link to the template, which ends after its agents, and stop watching the agents."""
        self._closing = True
        for descriptor in self._watched.values():
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        self._watched.clear()
        if self._link is None or self._reader is None:
            return
        with contextlib.suppress(OSError):  # it is dead already
            self._link.socket.shutdown(socket.SHUT_WR)
        await asyncio.wait([self._reader], timeout=_PATIENCE)
        self._reader.cancel()

    # -- the template --

    def _attach(self, link: Link) -> None:
        self._link = link
        self._reader = self._loop.create_task(self._read(link))
        self._reader.add_done_callback(self._report_failure)

    def _report_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def _read(self, link: Link) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=link.socket)
        self._writer.write(json.dumps({"job": self._job}).encode() + b"\n")
        for order in self._orders.values():
            self._writer.write(order)
        has_answered = False
        while line := await _read_line(reader):
            has_answered = True
            self._handle_message(json.loads(line))
        self._writer.close()
        self._link = self._writer = None
        if self._closing:
            await self._wait_for_end(link.pid)
        else:
            processes.reap(link.pid)  # where it is a child of ours
            self._replace_template(has_answered)

    async def _wait_for_end(self, pid: int) -> None:
        """Wait for the end of a template whose link is closed, and reap it."""
        ended = asyncio.Event()
        try:
            descriptor = linux.pidfd(pid)
        except ProcessLookupError:  # no child of ours: its parent may have reaped it before us
            return
        self._loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
            processes.reap(pid)
        finally:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def _handle_message(self, message: Mapping[str, Any]) -> None:
        key = message["task"], message["serial"]
        if "forked" in message:
            self._orders.pop(key, None)
            self._running[key] = Process(message["forked"], message["start"])
            self._began(key, self._running[key])
        elif "failed" in message:
            self._orders.pop(key, None)
            self._ended(key, None, "localization-failed", {"detail": message["failed"]})
        elif key in self._running:
            self._finish_soon(key, message["exited"])

    def _replace_template(self, has_answered: bool) -> None:
        """Watch the agents of a template that died, report its unanswered orders as lost, and start another template."""
        unanswered, self._orders = list(self._orders), {}
        for key, agent in list(self._running.items()):
            if key not in self._watched:
                self._watch(key, agent)
        for key in unanswered:
            self._ended(key, None, "agent-lost", {"detail": "the process that starts containers died"})
        # A template that never answered is not replaced before there is an order. `_ended` above may have led to an order already.
        if has_answered and self._link is None:
            self._attach(spawn(self._command))

    # -- agents whose parent does not report to us --

    def _watch(self, key: Key, agent: Process) -> None:
        try:
            descriptor = linux.pidfd(agent.pid)
        except ProcessLookupError:
            self._loop.call_soon(self._agent_died, key)
            return
        if not agent.alive:
            os.close(descriptor)
            self._loop.call_soon(self._agent_died, key)
            return
        self._watched[key] = descriptor
        self._loop.add_reader(descriptor, self._agent_died, key)

    def _agent_died(self, key: Key) -> None:
        if (descriptor := self._watched.pop(key, None)) is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        if key in self._running:
            self._finish_soon(key, None)

    def _finish_soon(self, key: Key, status: int | None) -> None:
        task = self._loop.create_task(self._finish(key, status))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        task.add_done_callback(self._report_failure)

    async def _finish(self, key: Key, status: int | None) -> None:
        """Report an exit, once none of the container's processes is left."""
        agent = self._running.pop(key)
        await asyncio.to_thread(_clear, self._job, key, agent, status is not None)
        self._ended(key, status, REASONS.get(status or 0), {})


def _clear(job: str, key: Key, agent: Process, ended: bool) -> None:
    """Remove what an agent left behind: its control groups, and its marks, with their processes unless the template has ended them."""
    limits.remove_groups(job, agent.pid)
    processes.clear_marked(job, *key, ended=ended)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readline()
    except ConnectionError:  # the template died with an order unread, or before one was written
        return b""
    return line if line.endswith(b"\n") else b""
