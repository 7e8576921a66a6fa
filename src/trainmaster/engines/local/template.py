"""The template is a process that has imported the agent's code, and forks an agent in a millisecond.

It is single-threaded, or forking it would be unsafe. The command that submits forks the first template before all else; it imports the
agent while the job is read and its master gets ready. A later template is a fresh interpreter. A template takes orders over a socket, one
JSON object a line: first `{"job"}` names its job, then each `{"task", "serial", "spec"}` forks an agent, which runs `run(spec)`. Its
answers carry task and serial and `{"forked": pid, "start"}`, later `{"exited": status}` (negative: a signal), or `{"failed": why}`.

The template is its agents' parent and, as a subreaper, inherits the processes that a dead agent leaves behind. Every child that is not an
agent is such a process, and is killed, unless it is marked as a master, template or agent: an agent may have begun the job's next master.
The agent's exit is reported only when none is left, so that no process of a container outlives the report.
When the master dies (the socket ends) the template takes no more orders and stays only until its agents have ended.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import attrs

from trainmaster.core.plain import Plain
from trainmaster.host import linux, places, processes

Run = Callable[[dict[str, Any]], int]  # returns the exit status

_FAILED = 70  # the exit status of an agent that raised; EX_SOFTWARE of sysexits.h
_STUBBORN = 5.0  # s after which an exit is reported although the kernel still holds on to a killed process


@attrs.frozen(slots=True, eq=False, repr=False)
class Link(Plain):
    """The master's end of the connection: the template's process id, and the socket to it."""

    pid: int
    socket: socket.socket


def fork(agent: Callable[[], Run]) -> Link:
    """Fork a template out of this process, which must have no thread and no event loop yet. `agent` imports what agents run."""
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        _serve(theirs, agent)
    theirs.close()
    return Link(pid, ours)


def command(entry: str) -> list[str]:
    """Return the command of a template in a fresh interpreter; `entry` is "module:function" of the agent's `run`."""
    return [sys.executable, "-I", "-m", __name__, entry]


def spawn(argv: Sequence[str]) -> Link:
    """Start a template by a command, to which the number of its socket is appended."""
    ours, theirs = socket.socketpair()
    theirs.set_inheritable(True)
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    pid = os.posix_spawn(argv[0], [*argv, str(theirs.fileno())], os.environ, file_actions=actions)
    theirs.close()
    return Link(pid, ours)


def main(arguments: Sequence[str]) -> NoReturn:
    entry_point, descriptor = arguments
    _serve(socket.socket(fileno=int(descriptor)), lambda: entry(entry_point))


def entry(entry_point: str) -> Run:
    """Return the agent's `run` by its name, "module:function": engines know agents by name alone."""
    import importlib

    module, _, name = entry_point.partition(":")
    run: Run = getattr(importlib.import_module(module), name)
    return run


def _serve(link: socket.socket, agent: Callable[[], Run]) -> NoReturn:
    status = _FAILED
    try:
        _detach(link)
        run = agent()
        gc.freeze()  # so that collections in agents do not copy the pages they share with us
        _Template(link, run).serve()
        status = 0
    except BaseException:  # noqa: BLE001 - after no error may this process return into the master's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _detach(link: socket.socket) -> None:
    """Give this process its own session, descriptors and signals."""
    os.setsid()
    linux.adopt_orphans()
    linux.set_name("tm-template")
    linux.set_title("tm: template")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    _close_all_but(link.fileno())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class _Template:
    def __init__(self, link: socket.socket, run: Run) -> None:
        self._link: socket.socket | None = link
        self._run = run
        self._job = ""
        self._agents: dict[int, tuple[str, int]] = {}
        self._exits: list[dict[str, Any]] = []  # not reported yet
        self._exits_since = 0.0
        self._received = b""

    def serve(self) -> None:
        assert self._link is not None
        bell, ring = socket.socketpair()
        for end in (bell, ring):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(bell, select.POLLIN)
        poll.register(self._link, select.POLLIN)
        while self._is_linked or self._agents or self._exits:
            for descriptor, _ in poll.poll(1000 if self._exits else None):
                if descriptor == bell.fileno():
                    bell.recv(4096)
                elif not self._obey_orders():
                    poll.unregister(descriptor)
                    self._close_link()
            self._reap()

    @property
    def _is_linked(self) -> bool:
        return self._link is not None

    def _obey_orders(self) -> bool:
        """Read orders and obey them; return False at the end of the link."""
        assert self._link is not None
        try:
            received = self._link.recv(1 << 16)
        except ConnectionResetError:
            return False
        *lines, self._received = (self._received + received).split(b"\n")
        for order in map(json.loads, lines):
            if "job" in order:
                self._join_job(order["job"])
            else:
                self._fork(order)
        return bool(received)

    def _join_job(self, job: str) -> None:
        """Become the template of a job. Our output goes where its master's goes, no longer to the submitter's terminal."""
        self._job = job
        linux.set_title(f"tm: template {job}")
        processes.mark(job, processes.TEMPLATE, "", 0, os.getpid())
        folder = places.job_storage(job) / "logs" / "master"
        with contextlib.suppress(FileNotFoundError):
            log = os.open(folder / "start.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for descriptor in (1, 2):
                os.dup2(log, descriptor)
            os.close(log)

    def _fork(self, order: Mapping[str, Any]) -> None:
        key = {"task": order["task"], "serial": order["serial"]}
        try:
            pid = os.fork()
        except OSError as error:
            self._answer({**key, "failed": f"no process could be made: {error.strerror}"})
            return
        if not pid:
            self._become_agent(order)
        self._agents[pid] = (order["task"], order["serial"])
        # We mark the agent, so that it is marked before anybody knows of it; it also marks itself, should we die here.
        mark = processes.mark(self._job, processes.AGENT, order["task"], order["serial"], pid)
        self._answer({**key, "forked": pid, "start": 0 if mark is None else mark.process.start})

    def _become_agent(self, order: Mapping[str, Any]) -> NoReturn:
        status = _FAILED
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            linux.adopt_orphans()
            linux.set_name("tm-agent")
            linux.set_title(f"tm: agent {order['task']} {self._job}")
            processes.mark(self._job, processes.AGENT, order["task"], order["serial"], os.getpid())
            _close_all_but()
            status = self._run(order["spec"])
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        except BaseException:  # noqa: BLE001 - after no error may this process return into the template's loop
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        """Collect exits, kill the processes that dead agents left behind, and report the exits once none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            if pid in self._agents:
                task, serial = self._agents.pop(pid)
                self._exits.append({"task": task, "serial": serial, "exited": os.waitstatus_to_exitcode(status)})
                self._exits_since = time.monotonic()
        if not self._exits:
            return
        orphans = self._orphans()
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)  # our own child, not reaped yet: the id is surely its
        if orphans and time.monotonic() - self._exits_since < _STUBBORN:
            return  # their deaths wake us
        for message in self._exits:
            self._answer(message)
        self._exits.clear()

    def _orphans(self) -> list[int]:
        others = [pid for pid in processes.children(os.getpid()) if pid not in self._agents]
        if not others:
            return []
        marks = processes.living(self._job, processes.MASTER, processes.TEMPLATE, processes.AGENT)
        spared = {mark.process.pid for mark in marks}
        return [pid for pid in others if pid not in spared]

    def _answer(self, message: Mapping[str, Any]) -> None:
        if self._link is None:
            return
        try:
            self._link.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # the master is dead; we shall read the end of the link next
            return

    def _close_link(self) -> None:
        """Close the link of a dead master, and the descriptors that lead to its output."""
        assert self._link is not None
        self._link.close()
        self._link = None
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)


def _close_all_but(*kept: int) -> None:
    """Close every descriptor above the standard three but these."""
    low = 3
    for descriptor in sorted(kept):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, 1 << 20)


if __name__ == "__main__":
    main(sys.argv[1:])
