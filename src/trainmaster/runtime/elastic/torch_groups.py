"""Process groups of PyTorch that last one round, and end at once when it is broken.

Each process serves a store from its first round on; that of rank 0 is used. A group is made in a thread, since nothing frees a process that
waits there for a peer which has died: the thread is left behind, and ends by its timeout. A collective of gloo is freed by shutting down
the sockets that the group has made (`abort` of PyTorch 2.15 does not free it), one of NCCL by its `abort`.

NCCL's way was written by its documents and never run.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from .rendezvous import BROKEN, Round

dist: Any = torch.distributed  # the classes below are not among its declared names
FORMING = timedelta(seconds=60)  # until a thread that forms a group gives up
MOMENT = timedelta(seconds=1)  # of a collective, until a signal that has come, as that of Ctrl-C, is served
LONGEST = timedelta(days=7)  # of a collective: a peer may compute for long, and its death is heard of otherwise


class Interrupted(Exception):
    """The round is broken, or a peer is not reached."""


class Group:
    """The process group of a round."""

    def __init__(self, number: int, backend: Any, sockets: dict[int, str], device: torch.device) -> None:
        self.number, self._backend, self._sockets, self._device = number, backend, sockets, device
        self._is_broken = False

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum each tensor over all members, in place. Raises Interrupted; tensors are to be dropped then."""
        self._finish(lambda: [self._backend.allreduce([tensor]) for tensor in tensors])

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Give all members the tensor of rank `source`, in place. Raises Interrupted."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        self._finish(lambda: [self._backend.broadcast([tensor], options)])

    def _finish(self, begin: Callable[[], list[Any]]) -> None:
        try:
            for work in begin():
                if self._device.type != "cuda":
                    _wait(work)
                work.wait()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except RuntimeError as error:  # PyTorch's errors of all backends are such
            raise Interrupted(str(error)) from error
        if self._is_broken and self._device.type == "cuda":  # an aborted kernel ends without an error
            raise Interrupted("the round is broken")

    def abort(self) -> None:
        """Free whoever waits in a collective. May be called by any thread."""
        self._is_broken = True
        if not self._sockets:
            with contextlib.suppress(RuntimeError):
                self._backend.abort()
        for descriptor, name in self._sockets.items():
            # The duplicate is ours: nobody closes it between the look and the shutdown.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                if os.readlink(f"/proc/self/fd/{connection.fileno()}") == name:
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.abort()
        self._backend = None


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
            try:
                group = self._form(meeting)
            except BaseException as error:  # noqa: BLE001  it is raised where the group is waited for
                with self._news:
                    results.append(error)
                    self._news.notify_all()
                return
            with self._news:
                is_late = meeting.number <= self._broken
                if not is_late:  # else the next one may be there already
                    self._group = group
                results.append(group)
                self._news.notify_all()
            # Nobody waits in a late group. One of gloo is let go: `abort` might end connections made for the next one meanwhile.
            if is_late and self._backend == "nccl":
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
        store = self._store
        if meeting.rank:
            address = first.address or "127.0.0.1"
            store = dist.TCPStore(
                address, json.loads(first.payload)[0], is_master=False, wait_for_workers=False, timeout=FORMING
            )
        store = dist.PrefixStore(f"round {meeting.number}", store)
        if self._backend == "nccl":
            torch.cuda.set_device(self._device)
            backend: Any = dist.ProcessGroupNCCL(store, meeting.rank, meeting.size, LONGEST)
            group = Group(meeting.number, backend, {}, self._device)
            group.sum([torch.zeros(1, device=self._device)])  # communicators are made by the first collective
            return group
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


def _wait(work: Any) -> None:
    """Wait until a collective of gloo is over, well or not. Meanwhile signals are served."""
    while not work.is_completed():
        with contextlib.suppress(RuntimeError):  # it has failed, or the moment is over
            work.wait(MOMENT)


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
