"""Process groups of PyTorch that last one round, and end at once when it is broken.

Each process serves a store from its first round on; that of rank 0 is used. The members of a round meet there before they make a group,
for nothing frees a process that makes one with a peer which has died. If one dies just then, the thread that makes the group is left
behind, and ends by its timeout.

A collective of gloo is freed by shutting down the sockets that the group has made (`abort` of PyTorch 2.15 does not free it), one of NCCL
by its `abort`. A kernel of NCCL that is aborted does not stop but runs to its end without its peers' data, and what it sends meanwhile can
end a peer's kernel with a wrong sum. So members confirm each collective: who comes to the second one had ended the first one well.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from .rendezvous import BROKEN
from .rounds import Round

dist: Any = torch.distributed  # the classes below are not among its declared names
cuda: Any = torch.cuda
FORMING = timedelta(seconds=60)  # until a thread that forms a group gives up
NCCL_FORMING = 300  # s, the same of NCCL's communicators
ARRIVAL = 0.002  # s between two looks who has come
PAUSE = 50e-6  # s between two looks whether a GPU is done
MOMENT = timedelta(seconds=0.1)  # of a collective, until a signal that has come, as that of Ctrl-C, is served
GRACE = 0.2  # s that a collective of gloo has to end in, once its sockets are shut down
EXIT = 5.0  # s that the end of the program waits for groups of NCCL that are being ended
LONGEST = timedelta(days=7)  # of a collective: a peer may compute for long, and its death is heard of otherwise


class Interrupted(Exception):
    """The round is broken, or a peer is not reached."""


class Group:
    """The process group of a round. `sockets`: those of gloo; None: it is one of NCCL."""

    def __init__(self, number: int, backend: Any, sockets: dict[int, str] | None, device: torch.device) -> None:
        self.number, self._backend, self._device = number, backend, device
        self._is_nccl, self._sockets = sockets is None, sockets or {}
        self._works: list[Any] = []  # of a collective that is not over
        self._confirmed = 0  # collectives of NCCL
        self._is_broken = False

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
            self._works = begin(backend)
            for work in self._works:
                if not self._is_nccl:
                    self._wait(work)
                work.wait()
            if self._is_nccl:
                self._wait_for_gpu()
                self._confirm(backend)
            self._works = []  # they keep the tensors
        except RuntimeError as error:  # PyTorch's errors of all backends are such
            raise Interrupted(str(error)) from error

    def _confirm(self, backend: Any) -> None:
        """Raise Interrupted unless all members have ended the same collective well."""
        self._confirmed += 1
        total = torch.full((1,), self._confirmed, dtype=torch.int64, device=self._device)
        backend.allreduce([total]).wait()
        self._wait_for_gpu()
        if int(total.item()) != self._confirmed * backend.size():
            raise Interrupted("a member has left in the middle of a collective")

    def _wait_for_gpu(self) -> None:
        """Wait until the present stream is done. Meanwhile signals are served. Raises Interrupted."""
        event = cuda.current_stream(self._device).record_event()
        while not event.query():
            time.sleep(PAUSE)
        self._check()  # an aborted kernel ends without an error

    def _wait(self, work: Any) -> None:
        """Wait until a collective of gloo is over, well or not. Meanwhile signals are served.

        Raises Interrupted where the end of its sockets does not free it: gloo tells no operation that is in the middle of a message.
        """
        end = math.inf
        while not work.is_completed():
            if self._is_broken:
                end = min(end, time.monotonic() + GRACE)
            if time.monotonic() > end:
                raise Interrupted("the round is broken")
            with contextlib.suppress(RuntimeError):  # it has failed, or the moment is over
                work.wait(MOMENT)

    def _check(self) -> None:
        if self._is_broken:
            raise Interrupted("the round is broken")

    def abort(self) -> None:
        """Free whoever waits in a collective. May be called by any thread."""
        backend, was_broken, self._is_broken = self._backend, self._is_broken, True
        if self._is_nccl and not was_broken and backend is not None:
            # It frees whoever waits at once, and returns half a second later. It waits for a communicator that is being made.
            _end_apart(backend.abort)
        for descriptor, name in self._sockets.items():
            if (connection := _duplicate(descriptor, name)) is not None:
                with connection, contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.abort()
        backends, self._backend = [self._backend], None
        if self._is_nccl:
            self._works = []
            _end_apart(backends.clear)  # its destructor waits for its threads
            return
        try:
            for work in self._works:
                self._wait(work)
        except BaseException as error:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(backends[0]))  # its destructor would wait for the operation
            if not isinstance(error, Interrupted):
                raise


class Listener:
    """Makes groups, and ends them when it hears that their round is broken. `port`: of this process's store."""

    def __init__(self, backend: str, device: torch.device) -> None:
        if backend not in ("gloo", "nccl"):
            raise ValueError(f"the backend is gloo or nccl, not {backend}")
        if backend == "nccl":
            can_end = hasattr(getattr(dist, "ProcessGroupNCCL", None), "abort")
            if not can_end or cuda.nccl.version()[:2] == (2, 26):
                raise ValueError(
                    "PyTorch 2.8 or later is needed to end NCCL in the middle; backend='gloo' is the other choice"
                )
            os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(NCCL_FORMING))
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
                    self._check(meeting)  # else the next one may be there already
                    self._group = group
                if self._backend == "nccl":
                    group.sum([torch.zeros(1, device=self._device)])  # makes the communicators
                result: Group | BaseException = group
            except BaseException as error:  # noqa: BLE001  it is raised where the group is waited for
                result = error.with_traceback(None)
            with self._news:
                results.append(result)
                self._news.notify_all()
                is_of_use = result is group and meeting.number > self._broken
            # Nobody waits in a late group. One of gloo is let go: `abort` might end connections made for the next one meanwhile.
            if self._backend == "nccl" and group is not None and not is_of_use:
                group.close()

        self._check(meeting)
        threading.Thread(target=form, name="trainmaster-group", daemon=True).start()
        with self._news:
            while not results and meeting.number > self._broken:
                self._news.wait()
            self._check(meeting)
        if isinstance(results[0], Group):
            return results[0]
        raise Interrupted(str(results[0])) from results[0]

    def _check(self, meeting: Round) -> None:
        if meeting.number <= self._broken:
            raise Interrupted("the round is broken")

    def _meet(self, meeting: Round) -> Any:
        """Return a store of the round once all its members have come to it. Raises Interrupted, OSError, RuntimeError."""
        end = time.monotonic() + FORMING.total_seconds()
        first = meeting.members[0]
        place = first.address or "127.0.0.1", json.loads(first.payload)[0]
        while True:  # what PyTorch makes would wait for one that has died
            try:
                socket.create_connection(place, timeout=1.0).close()
                break
            except OSError:
                self._check(meeting)
                if time.monotonic() > end:
                    raise
                time.sleep(ARRIVAL)
        # A connection for each round, for rank 0 too: one that still waits, for a round that is broken, serves nobody else.
        store = dist.TCPStore(*place, is_master=False, wait_for_workers=False, timeout=FORMING)
        store = dist.PrefixStore(f"round {meeting.number}", store)
        come = store.add("come", 1)
        while come < meeting.size:
            self._check(meeting)
            if time.monotonic() > end:
                raise RuntimeError(f"{come} of {meeting.size} members have come within {FORMING.total_seconds():.0f} s")
            time.sleep(ARRIVAL)
            come = store.add("come", 0)
        return store

    def _form(self, meeting: Round) -> Group:
        me, store = meeting.members[meeting.rank], self._meet(meeting)
        if self._backend == "nccl":
            cuda.set_device(self._device)
            choices = dist.ProcessGroupNCCL.Options()
            choices._timeout, choices.config.blocking = LONGEST, 0
            with _errors_left_alone():
                backend: Any = dist.ProcessGroupNCCL(store, meeting.rank, meeting.size, choices)
            return Group(meeting.number, backend, None, self._device)
        options, others = dist.ProcessGroupGloo._Options(), _epolls()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=me.address or "127.0.0.1")]
        options._timeout = FORMING
        epolls, before = _epolls() - others, _connections()
        backend = dist.ProcessGroupGloo(store, meeting.rank, meeting.size, options)
        # The group's connections are watched by its own epoll; one that another thread has opened meanwhile is the program's.
        watched = _watched(epolls or _epolls())
        sockets = {
            descriptor: name for descriptor, name in _connections().items()
            if before.get(descriptor) != name and descriptor in watched
        }  # fmt: skip
        backend._set_default_timeout(LONGEST)
        return Group(meeting.number, backend, sockets, self._device)


_making, _ending = threading.Lock(), list[threading.Thread]()


def _end_apart(act: Callable[[], None]) -> None:
    """Have a thread end something of NCCL. The program's end waits for it for a while: PyTorch must not be in the middle of it."""
    thread = threading.Thread(target=act, name="trainmaster-abort", daemon=True)
    _ending[:] = [other for other in _ending if other.is_alive()] + [thread]
    thread.start()


@atexit.register
def _await_ends() -> None:
    end = time.monotonic() + EXIT
    for thread in [*_ending]:
        thread.join(max(0.0, end - time.monotonic()))


@contextlib.contextmanager
def _errors_left_alone() -> Iterator[None]:
    """Have the groups of NCCL that are made here leave an error of a collective alone: else PyTorch ends the process.

    Nor may it abort such a group by itself, before anybody has said that the round is broken; or wait for the dumps of all ranks.
    """
    settings = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    }  # fmt: skip
    with _making:
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _duplicate(descriptor: int, name: str = "socket:") -> socket.socket | None:
    """Return a duplicate of a descriptor whose name begins so: nobody else closes it. None where it is another one by now."""
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return None
    if os.readlink(f"/proc/self/fd/{duplicate}").startswith(name):
        return socket.socket(fileno=duplicate)
    os.close(duplicate)
    return None


def _connections() -> dict[int, str]:
    """Return the TCP connections of this process: descriptor -> what it is."""
    connections = {}
    for descriptor, name in _descriptors("socket:").items():
        if (connection := _duplicate(descriptor, name)) is not None:
            with connection, contextlib.suppress(OSError):
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername():
                    connections[descriptor] = name
    return connections


def _epolls() -> set[int]:
    return {*_descriptors("anon_inode:[eventpoll]")}


def _watched(epolls: set[int]) -> set[int]:
    """Return the descriptors that these descriptors watch."""
    watched = set()
    for descriptor in epolls:
        with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{descriptor}") as lines:
            watched |= {int(line.split()[1]) for line in lines if line.startswith("tfd:")}
    return watched


def _descriptors(prefix: str) -> dict[int, str]:
    """Return the names of this process's descriptors whose names begin so."""
    names = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            names[descriptor] = os.readlink(f"/proc/self/fd/{descriptor}")
    return {descriptor: name for descriptor, name in names.items() if name.startswith(prefix)}
