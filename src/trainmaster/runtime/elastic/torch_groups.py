"""Process groups of PyTorch that last one round, and end at once when it is broken.

Each process serves a store from its first round on; that of rank 0 is used. A group is made in a thread, since nothing frees a process that
waits there for a peer which has died: the thread is left behind, and ends by its timeout. A collective of gloo is freed by shutting down
the sockets that the group has made (`abort` of PyTorch 2.15 does not free it), one of NCCL by its `abort`.

NCCL's communicators are made without blocking: only so a group whose peer has died is ended within a second, and its threads with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from .rendezvous import BROKEN, Round

dist: Any = torch.distributed  # the classes below are not among its declared names
FORMING = timedelta(seconds=60)  # until a thread that forms a group gives up
PAUSE = 50e-6  # s between two looks whether a GPU is done
MOMENT = timedelta(seconds=0.1)  # of a collective, until a signal that has come, as that of Ctrl-C, is served
LOOKS = 2  # one each moment, until a collective of gloo that a broken round does not free is left behind
LONGEST = timedelta(days=7)  # of a collective: a peer may compute for long, and its death is heard of otherwise


class Interrupted(Exception):
    """The round is broken, or a peer is not reached."""


class Group:
    """The process group of a round. `sockets`: those of gloo; None: it is one of NCCL."""

    def __init__(self, number: int, backend: Any, sockets: dict[int, str] | None, device: torch.device) -> None:
        self.number, self._backend, self._device = number, backend, device
        self._is_nccl, self._sockets = sockets is None, sockets or {}
        self._is_broken = self._is_stuck = False

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum each tensor over all members, in place. Raises Interrupted; tensors are to be dropped then."""
        self._finish(lambda backend: [backend.allreduce([tensor]) for tensor in tensors])

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Give all members the tensor of rank `source`, in place. Raises Interrupted."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        self._finish(lambda backend: [backend.broadcast([tensor], options)])

    def _finish(self, begin: Callable[[Any], list[Any]]) -> None:
        backend = self._backend
        self._check()
        try:
            for work in begin(backend):
                if not self._is_nccl:
                    self._wait(work)
                work.wait()
            if self._is_nccl:
                _wait_for(self._device)
                self._check()  # an aborted kernel ends without an error
        except RuntimeError as error:  # PyTorch's errors of all backends are such
            raise Interrupted(str(error)) from error

    def _wait(self, work: Any) -> None:
        """Wait until a collective of gloo is over, well or not. Meanwhile signals are served.

        Raises Interrupted where the end of its sockets does not free it: gloo tells no operation that is in the middle of a message.
        """
        looks = 0  # since the round was broken
        while not work.is_completed():
            looks += self._is_broken
            if looks > LOOKS:
                self._is_stuck = True
                raise Interrupted("the round is broken")
            with contextlib.suppress(RuntimeError):  # it has failed, or the moment is over
                work.wait(MOMENT)

    def _check(self) -> None:
        if self._is_broken:
            raise Interrupted("the round is broken")

    def abort(self) -> None:
        """Free whoever waits in a collective. May be called by any thread."""
        was_broken, self._is_broken = self._is_broken, True
        if self._is_nccl and not was_broken:
            # It frees whoever waits at once, and returns half a second later.
            threading.Thread(target=self._backend.abort, name="trainmaster-abort").start()
        for descriptor, name in self._sockets.items():
            # The duplicate is ours: nobody closes it between the look and the shutdown.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                if os.readlink(f"/proc/self/fd/{connection.fileno()}") == name:
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.abort()
        backends, self._backend = [self._backend], None
        if self._is_stuck:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(backends[0]))  # its destructor would wait for the operation
        if self._is_nccl:  # its destructor waits for its threads
            threading.Thread(target=backends.clear, name="trainmaster-close").start()


class Listener:
    """Makes groups, and ends them when it hears that their round is broken. `port`: of this process's store."""

    def __init__(self, backend: str, device: torch.device) -> None:
        if backend not in ("gloo", "nccl"):
            raise ValueError(f"the backend is gloo or nccl, not {backend}")
        self._backend, self._device = backend, device
        self._news = threading.Condition()  # of everything below
        self._group: Group | None = None
        self._broken = 0  # the newest round that is broken
        self._store: Any = None

    @property
    def port(self) -> int:
        """Return the port of this process's store, which is made when first needed."""
        if self._store is None:
            self._store = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=FORMING)
        return int(self._store.port)

    def close(self) -> None:
        """Serve no store any more."""
        self._store = None

    def heard(self, word: str, number: int) -> None:
        """Take in a word of the rendezvous."""
        if word != BROKEN:
            return
        with self._news:
            self._broken = max(self._broken, number)
            group = self._group
            self._news.notify_all()
        if group is not None and group.number <= number:
            group.abort()

    def group(self, meeting: Round) -> Group | None:
        """Return the group of a round, None where this process is alone in it. Raises Interrupted."""
        self._group = None
        if meeting.size == 1:
            return None
        results: list[Group | BaseException] = []

        def form() -> None:
            group: Group | None = None
            try:
                group = self._form(meeting)
                with self._news:
                    if meeting.number > self._broken:  # else the next one may be there already
                        self._group = group
                if self._backend == "nccl":
                    group.sum([torch.zeros(1, device=self._device)])  # makes the communicators; an abort ends it
                result: Group | BaseException = group
            except BaseException as error:  # noqa: BLE001  it is raised where the group is waited for
                result = error
            with self._news:
                results.append(result)
                self._news.notify_all()
                is_of_use = result is group and meeting.number > self._broken
            # Nobody waits in a late group. One of gloo is let go: `abort` might end connections made for the next one meanwhile.
            if self._backend == "nccl" and group is not None and not is_of_use:
                group.close()

        threading.Thread(target=form, name="trainmaster-group", daemon=True).start()
        with self._news:
            while not results and meeting.number > self._broken:
                self._news.wait()
            if meeting.number <= self._broken:
                raise Interrupted("the round is broken")
        if isinstance(results[0], Group):
            return results[0]
        raise Interrupted(str(results[0])) from results[0]

    def _form(self, meeting: Round) -> Group:
        first, me = meeting.members[0], meeting.members[meeting.rank]
        # A connection for each round, for rank 0 too: one that still waits, for a round that is broken, serves nobody else.
        address, port = first.address or "127.0.0.1", json.loads(first.payload)[0]
        store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=FORMING)
        store = dist.PrefixStore(f"round {meeting.number}", store)
        if self._backend == "nccl":
            torch.cuda.set_device(self._device)
            choices = dist.ProcessGroupNCCL.Options()
            choices._timeout, choices.config.blocking = LONGEST, 0
            with _kept_on_errors():
                backend: Any = dist.ProcessGroupNCCL(store, meeting.rank, meeting.size, choices)
            return Group(meeting.number, backend, None, self._device)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=me.address or "127.0.0.1")]
        options._timeout = FORMING
        before = _connections()
        backend = dist.ProcessGroupGloo(store, meeting.rank, meeting.size, options)
        watched = _watched()  # gloo's are; one that another thread has opened meanwhile is the program's
        sockets = {
            descriptor: name for descriptor, name in _connections().items()
            if before.get(descriptor) != name and descriptor in watched
        }  # fmt: skip
        backend._set_default_timeout(LONGEST)
        return Group(meeting.number, backend, sockets, self._device)


def _wait_for(device: torch.device) -> None:
    """Wait until the present stream of a GPU is done. Meanwhile signals are served."""
    event = torch.cuda.current_stream(device).record_event()
    while not event.query():
        time.sleep(PAUSE)


@contextlib.contextmanager
def _kept_on_errors() -> Iterator[None]:
    """Have the groups of NCCL that are made here leave an error of a collective alone: else PyTorch ends the process.

    Nor may PyTorch abort such a group by itself: the kernel would end with a wrong sum before anybody has said that the round is broken.
    """
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _connections() -> dict[int, str]:
    """Return the TCP connections of this process: descriptor -> what it is."""
    connections = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name.startswith("socket:"):
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername():
                        connections[descriptor] = name
    return connections


def _watched() -> set[int]:
    """Return the descriptors that an epoll of this process watches."""
    watched = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}") == "anon_inode:[eventpoll]":
                with open(f"/proc/self/fdinfo/{descriptor}") as lines:
                    watched |= {int(line.split()[1]) for line in lines if line.startswith("tfd:")}
    return watched
