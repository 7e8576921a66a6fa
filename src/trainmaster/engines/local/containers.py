"""The master's view of its containers: agents forked by the template, or taken over from an earlier master.

Exits of the template's own agents are told by the template, with their status, when nothing of them is left. If the template dies, its
agents go on; they are then watched, like those of an earlier master, by pidfd: exact and at once, but without a status, and what they leave
behind is ended by us; their parent is then init, as the first template's is the command that submitted, and neither is ours to wait for.
An order that a dead template had not answered counts as a lost container: whether it was carried out cannot be known, and a stray agent is
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

from trainmaster.engines.local.template import Link, spawn
from trainmaster.engines.statuses import OUT_OF_REACH
from trainmaster.host import limits, linux, processes
from trainmaster.host.processes import Process

Key = tuple[str, int]  # task, serial

_PATIENCE = 5.0  # s for a template that is let go of to end


class Containers:
    """The containers of one job. `began(key, process)` and `ended(key, status, reason, figures)` are called on the loop.

    So is `failed(error)`, where we cannot go on: who hears no more of containers must not go on as if nothing happened to them.
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
        self._watched: dict[Key, int] = {}  # by pidfd
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
        """Take over an agent that an earlier master started."""
        self._running[task, serial] = agent
        self._watch((task, serial), agent)

    def send(self, task: str, serial: int, number: int) -> None:
        """Send a signal to an agent."""
        if (agent := self._running.get((task, serial))) is not None:
            processes.send(agent, number)

    async def close(self) -> None:
        """Let go of the template, which ends when its agents have, and of the agents."""
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
        self._reader.add_done_callback(self._heed)

    def _heed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def _read(self, link: Link) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=link.socket)
        self._writer.write(json.dumps({"job": self._job}).encode() + b"\n")
        for order in self._orders.values():
            self._writer.write(order)
        heard = False
        while line := await _line(reader):
            heard = True
            self._told(json.loads(line))
        self._writer.close()
        self._link = self._writer = None
        if self._closing:
            await self._over(link.pid)
        else:
            processes.reap(link.pid)  # where it is a child of ours
            self._lost(heard)

    async def _over(self, pid: int) -> None:
        """Wait for the end of a template that is on its way out."""
        over = asyncio.Event()
        try:
            descriptor = linux.pidfd(pid)
        except ProcessLookupError:  # no child of ours: whoever is its parent may have heard before us
            return
        self._loop.add_reader(descriptor, over.set)
        try:
            await over.wait()
            processes.reap(pid)
        finally:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def _told(self, message: Mapping[str, Any]) -> None:
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

    def _lost(self, heard: bool) -> None:
        """The template is dead: its agents go on without it."""
        unanswered, self._orders = list(self._orders), {}
        for key, agent in list(self._running.items()):
            if key not in self._watched:
                self._watch(key, agent)
        for key in unanswered:
            self._ended(key, None, "agent-lost", {"detail": "the process that starts containers died"})
        # One that never answered is not worth a second try before there is an order; what was lost may have called for one already.
        if heard and self._link is None:
            self._attach(spawn(self._command))

    # -- agents whose parent we do not hear --

    def _watch(self, key: Key, agent: Process) -> None:
        try:
            descriptor = linux.pidfd(agent.pid)
        except ProcessLookupError:
            self._loop.call_soon(self._gone, key)
            return
        if not agent.alive:
            os.close(descriptor)
            self._loop.call_soon(self._gone, key)
            return
        self._watched[key] = descriptor
        self._loop.add_reader(descriptor, self._gone, key)

    def _gone(self, key: Key) -> None:
        if (descriptor := self._watched.pop(key, None)) is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        if key in self._running:
            self._finish_soon(key, None)

    def _finish_soon(self, key: Key, status: int | None) -> None:
        task = self._loop.create_task(self._finish(key, status))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        task.add_done_callback(self._heed)

    async def _finish(self, key: Key, status: int | None) -> None:
        """Report an exit, once nothing of the container is left."""
        agent = self._running.pop(key)
        await asyncio.to_thread(_clear, self._job, key, agent, status is not None)
        self._ended(key, status, "no-master" if status == OUT_OF_REACH else None, {})


def _clear(job: str, key: Key, agent: Process, ended: bool) -> None:
    """Remove what an agent has left behind: groups, with all inside, and marks, with their processes unless the template ended them."""
    limits.remove_groups(job, agent.pid)
    processes.clear_marked(job, *key, ended=ended)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readline()
    except ConnectionError:  # it died with an order unread, or before one was written
        return b""
    return line if line.endswith(b"\n") else b""
