"""Add up NumPy arrays over the members of a round, in a way that another thread can abort at any moment.

The members of a round form a *ring*: each connects to the one after it and is connected to by the one before it, over TCP, whatever the
addresses are (IPv4, IPv6). Each process has one `Listener` for its whole life; each round has a `Ring` of its own.

*Sum.* The array is cut into as many segments as there are members. A segment goes around once and each member adds to it (reduce-scatter),
and goes around again as the sum (all-gather). So each member sends and receives 2 (n - 1) / n of the array, and each segment is added up
in one order, by one member after another: all members hold the same bits afterwards. A member sends what it has just received, so both
streams flow at the same time, and `CHUNK` bytes are all the memory that this needs beside the array.

*Abort.* `Ring.abort()` frees every wait at once, also one for a peer that neither answers nor closes its socket. A ring is of no use once
it was aborted, or a neighbour has closed its connection: each call raises `Aborted`, and its closed connections pass this on to the
others. The array of an interrupted call holds anything.

*Handshake.* Each end draws a number and sends it. Each returns a proof, by the job's key for rings, that it is a member of this round: over
both numbers, the job, the round's number, its members, and the rank that connects. Strangers and members of another round are refused. A
member that was refused tries again, since its neighbour may not have come to the new round yet. What follows is not encrypted: whoever can
change packets on the ranks' network can change sums, as with gloo and NCCL.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import select
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from time import monotonic

from ..network.listeners import RING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import numpy as np

CHUNK = 256 * 1024  # bytes added up at once: they stay in a core's cache
_DRAWN = 16  # bytes of a drawn number
_PROOF = 32  # bytes of a proof
_HELLO = struct.Struct(
    f"!{_DRAWN}sI{_PROOF}s"
)  # of whoever connects: the number that it has drawn, its rank, its proof
_CALL = struct.Struct("!2sQ")  # begins each call's stream: kind and type of the numbers; their count
_PAUSE = 0.02  # s until a refused member connects again
_PATIENCE = 30.0  # s after which a member says for whom it waits
_STRANGERS = 32  # connections that have not said who they are; the oldest beyond that are closed


class Aborted(ConnectionError):
    """The ring is broken: it was aborted, or a member of it is gone."""


class Listener:
    """The port of this process where the member before it connects. It listens at `address`, where the others reach this task."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.socket = RING.at_address(address)
        self.socket.setblocking(False)
        self.port: int = self.socket.getsockname()[1]

    def close(self) -> None:
        self.socket.close()


class Ring:
    """One round's members, connected.

    `members` has address and port of each by rank, `number` is the round's, `key` the job's for rings. `connect()` waits for the
    neighbours; then all members make the same calls in the same order. A ring of one member has nobody to wait for.
    """

    def __init__(
        self, listener: Listener, key: str, job: str, number: int, rank: int, members: Sequence[tuple[str, int]]
    ) -> None:
        self.rank, self.members, self.number = rank, list(members), number
        self._listener = listener
        self._key, self._round = key.encode(), json.dumps([job, number, [list(member) for member in members]])
        self._is_aborted = self._is_closed = False
        self._lock = threading.Lock()  # of what `abort` touches from another thread
        self._woken, self._waker = os.pipe()
        self._left: Any = None  # the connection from the member before, once there is one
        self._right: Any = None
        self._scratch: Any = None

    @property
    def size(self) -> int:
        return len(self.members)

    def abort(self) -> None:
        """Free whoever waits in this ring, here and in the other members. For any thread, and any number of times."""
        with self._lock:
            if self._is_closed or self._is_aborted:
                return
            self._is_aborted = True
            os.write(self._waker, b"x")
            for neighbour in (self._left, self._right):
                if neighbour is not None:
                    with contextlib.suppress(OSError):  # it is not connected any more
                        neighbour.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connections. For the thread that makes the calls."""
        with self._lock:
            if self._is_closed:
                return
            self._is_aborted = self._is_closed = True
            for end in (self._woken, self._waker):
                os.close(end)
            for neighbour in (self._left, self._right):
                if neighbour is not None:
                    neighbour.close()

    def connect(self) -> None:
        """Connect with both neighbours, however long they take to come. Raises Aborted."""
        if self.size == 1:
            return
        with self._broken_by_errors(), _Meeting(self._listener.socket) as meeting:
            warn_at = monotonic() + _PATIENCE
            while self._left is None or self._right is None:
                self._meet(meeting)
                if monotonic() >= warn_at:
                    warn_at = monotonic() + _PATIENCE
                    self._tell_for_whom_it_waits()

    def all_reduce(self, array: np.ndarray[Any, Any]) -> None:
        """Make `array` the sum of all members' arrays, in place: contiguous, and everywhere of one length and type. Raises Aborted."""
        flat = _flat(array)
        cuts = [len(flat) * rank // self.size for rank in range(self.size + 1)]
        segments = [flat[cuts[rank] : cuts[rank + 1]] for rank in range(self.size)]
        turns = [segments[(self.rank - turn) % self.size] for turn in range(2 * self.size - 1)]
        self._stream(b"s", flat, turns[:-1], turns[1:], self.size - 1, ahead=turns[0].nbytes)

    def broadcast(self, array: np.ndarray[Any, Any], root: int) -> None:
        """Make `array` that of the member of rank `root`, in place: contiguous, and everywhere of one length and type. Raises Aborted."""
        flat = _flat(array)
        is_last = (self.rank + 1) % self.size == root
        sent, received = [] if is_last else [flat], [] if self.rank == root else [flat]
        self._stream(b"b", flat, sent, received, 0, ahead=flat.nbytes if self.rank == root else 0)

    # -- meeting the neighbours --

    def _meet(self, meeting: _Meeting) -> None:
        """Take the next step towards both neighbours: wait until something happens, and answer it."""
        if self._right is None and meeting.outgoing is None and monotonic() >= meeting.retry_at:
            meeting.begin(self.members[(self.rank + 1) % self.size])
        is_paused = self._right is None and meeting.outgoing is None
        ready = self._poll(
            meeting.awaited_events(), max(0.0, meeting.retry_at - monotonic()) if is_paused else _PATIENCE
        )
        if (
            meeting.outgoing is not None
            and meeting.outgoing.fileno() in ready
            and meeting.is_accepted(self.rank, self._proof)
        ):
            self._keep(right=meeting.outgoing)
            meeting.outgoing = None
        if self._listener.socket.fileno() in ready:
            meeting.admit()
        for stranger, ours, hello in meeting.introduced(ready):
            theirs, rank, proof = _HELLO.unpack(hello.ljust(_HELLO.size))
            is_left = self._left is None and rank == (self.rank - 1) % self.size
            if is_left and hmac.compare_digest(proof, self._proof("connects", rank, ours, theirs)):
                stranger.send(self._proof("accepts", rank, ours, theirs))  # as one: it is short, and the second
                self._keep(left=stranger)
            else:
                stranger.close()

    def _proof(self, act: str, rank: int, accepting: bytes, connecting: bytes) -> bytes:
        """Return what proves that an end is a member of this round. `rank`: of who connects; then the numbers that both ends have drawn."""
        text = json.dumps([act, self._round, rank, accepting.hex(), connecting.hex()])
        return hmac.digest(self._key, text.encode(), "sha256")

    def _keep(self, left: socket.socket | None = None, right: socket.socket | None = None) -> None:
        with self._lock:
            self._left, self._right = left or self._left, right or self._right
        for neighbour in (left, right):
            if neighbour is not None:
                neighbour.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _tell_for_whom_it_waits(self) -> None:
        before, after = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        waits = []
        if self._left is None:
            waits.append(f"rank {before} has not connected to port {self._listener.port} of this rank")
        if self._right is None:
            address, port = self.members[after]
            waits.append(f"rank {after} has not answered at {address}, port {port}")
        print(f"elastic: round {self.number}, rank {self.rank}: {'; '.join(waits)}", file=sys.stderr, flush=True)

    # -- streams --

    def _stream(self, kind: bytes, flat: Any, sent: list[Any], received: list[Any], sums: int, ahead: int) -> None:
        """Send the arrays `sent` one after another to the right, and receive `received` from the left, the first `sums` of them as
        summands. At most `ahead` bytes more are sent than were received: so the bytes to send on have arrived.
        """
        if self.size == 1:
            return
        with self._broken_by_errors():
            head = _CALL.pack(kind + flat.dtype.char.encode(), len(flat))
            outgoing = _Outgoing(self._right, [head, *(_bytes(array) for array in sent)] if sent else [])
            incoming = self._incoming(head, received, sums) if received else iter(())
            arrived, is_receiving = 0, bool(received)
            while is_receiving or outgoing.left:
                is_idle = True
                if is_receiving:
                    count = next(incoming, None)
                    is_receiving, is_idle = count is not None, count == 0
                    arrived += count or 0
                is_blocked = outgoing.push(len(head) + ahead + arrived)
                if self._is_aborted:
                    raise Aborted("the ring was aborted")
                if is_idle and (is_receiving or is_blocked):
                    awaited = {}
                    if is_receiving:
                        awaited[self._left.fileno()] = select.POLLIN
                    if is_blocked:
                        awaited[self._right.fileno()] = awaited.get(self._right.fileno(), 0) | select.POLLOUT
                    self._poll(awaited, None)

    def _incoming(self, head: bytes, arrays: list[Any], sums: int) -> Iterator[int]:
        """Receive arrays, the first `sums` of them as summands. Yields the bytes that can be sent on; 0: nothing has come."""
        import numpy

        if self._scratch is None:
            self._scratch = numpy.empty(CHUNK, numpy.uint8)
        space = memoryview(bytearray(len(head)))
        yield from (0 for count in self._receive(space) if not count)
        if space != head:
            raise RuntimeError(
                f"rank {(self.rank - 1) % self.size} makes another call than this rank, or with an array of another length or type:"
                f" {_call_text(bytes(space))}, and here {_call_text(head)}"
            )
        for turn, array in enumerate(arrays):
            if turn >= sums:
                yield from self._receive(_bytes(array))
                continue
            step = CHUNK // array.itemsize
            for first in range(0, len(array), step):
                part = array[first : first + step]
                summand = self._scratch[: part.nbytes]
                yield from (0 for count in self._receive(memoryview(summand)) if not count)
                with numpy.errstate(
                    all="ignore"
                ):  # a sum that overflows is the program's matter, as under other launchers
                    numpy.add(part, summand.view(array.dtype), out=part)
                yield part.nbytes

    def _receive(self, space: memoryview) -> Iterator[int]:
        while space:
            try:
                count = self._left.recv_into(space)
            except BlockingIOError:
                yield 0
                continue
            if not count:
                raise ConnectionResetError("it closed the connection")
            space = space[count:]
            yield count

    def _poll(self, awaited: dict[int, int], seconds: float | None) -> dict[int, int]:
        """Wait for events of descriptors, and return those that have some. Raises Aborted."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        for descriptor, events in awaited.items():
            poll.register(descriptor, events)
        ready = dict(poll.poll(None if seconds is None else seconds * 1000))
        if self._is_aborted:
            raise Aborted("the ring was aborted")
        return ready

    @contextlib.contextmanager
    def _broken_by_errors(self) -> Iterator[None]:
        """Let whatever ends a call early break the ring, so that nobody waits for this member. Raises Aborted for a lost connection."""
        if self._is_aborted:
            raise Aborted("the ring was aborted")
        try:
            yield
        except Aborted:
            raise
        except OSError as error:
            was_aborted = self._is_aborted
            self.abort()
            raise Aborted(
                "the ring was aborted" if was_aborted else f"a member of the ring is gone: {error}"
            ) from error
        except BaseException:
            self.abort()
            raise


class _Outgoing:
    """Parts to be sent one after another over a connection. `left`: their bytes that are not sent."""

    def __init__(self, connection: Any, parts: list[Any]) -> None:
        self._connection = connection
        self._parts = [memoryview(part) for part in parts if len(part)]
        self._sent = 0
        self.left = sum(len(part) for part in self._parts)

    def push(self, limit: int) -> bool:
        """Send what can be sent at once of the first `limit` bytes. Return whether the connection takes no more for now."""
        while self._parts and self._sent < limit:
            part = self._parts[0][: limit - self._sent]
            try:
                count = self._connection.send(part)
            except BlockingIOError:
                return True
            self._sent += count
            self.left -= count
            self._parts[0] = self._parts[0][count:]
            if not self._parts[0]:
                del self._parts[0]
        return False


class _Meeting:
    """The connections of a ring that is being connected: the one to the right, and those that came and have not said who they are."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.outgoing: socket.socket | None = None
        self.retry_at = 0.0
        self._answer = bytearray()  # of the right, as far as it has come: the number that it has drawn, then its proof
        self._expected = b""  # that proof, once this end has sent its own
        self._strangers: dict[
            socket.socket, tuple[bytes, bytearray]
        ] = {}  # the number drawn for each, and what it has sent

    def __enter__(self) -> _Meeting:
        return self

    def __exit__(self, *raised: object) -> None:
        for connection in [*self._strangers, *([self.outgoing] if self.outgoing else [])]:
            connection.close()

    def awaited_events(self) -> dict[int, int]:
        awaiting = [self._listener, *self._strangers, *([self.outgoing] if self.outgoing else [])]
        return dict.fromkeys((connection.fileno() for connection in awaiting), select.POLLIN)

    def begin(self, member: tuple[str, int]) -> None:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(*member, type=socket.SOCK_STREAM)[0]
            self.outgoing = socket.socket(family, kind, protocol)
            self.outgoing.setblocking(False)
            self.outgoing.connect(address)
        except BlockingIOError:
            pass
        except OSError:  # an address that is not there yet
            self._retry()

    def is_accepted(self, rank: int, prove: Callable[[str, int, bytes, bytes], bytes]) -> bool:
        """Go on with the connection to the right, which can be read. Return whether both ends have proved that they are members."""
        connection = self.outgoing
        assert connection is not None
        try:
            piece = connection.recv((_PROOF if self._expected else _DRAWN) - len(self._answer))
            self._answer += piece
            if self._expected and len(self._answer) == _PROOF and hmac.compare_digest(self._answer, self._expected):
                return True
            if not self._expected and len(self._answer) == _DRAWN:
                theirs, ours = bytes(self._answer), secrets.token_bytes(_DRAWN)
                self._expected = prove("accepts", rank, theirs, ours)
                self._answer.clear()
                connection.send(
                    _HELLO.pack(ours, rank, prove("connects", rank, theirs, ours))
                )  # as one: short, and the first
            elif not piece or len(self._answer) == _PROOF:
                self._retry()  # it has not come to this round, or is a stranger
        except BlockingIOError:
            pass
        except OSError:  # nobody listens there yet
            self._retry()
        return False

    def admit(self) -> None:
        with contextlib.suppress(OSError):  # it has gone again
            stranger, drawn = self._listener.accept()[0], secrets.token_bytes(_DRAWN)
            stranger.setblocking(False)
            self._strangers[stranger] = drawn, bytearray()
            stranger.send(drawn)
        while len(self._strangers) > _STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close()

    def introduced(self, ready: dict[int, int]) -> Iterator[tuple[socket.socket, bytes, bytes]]:
        """Hand over the connections that have said who they are, with the number drawn for each. Those that end before are closed."""
        for stranger, (drawn, received) in [*self._strangers.items()]:
            if stranger.fileno() not in ready:
                continue
            piece = b""
            with contextlib.suppress(OSError):
                piece = stranger.recv(_HELLO.size - len(received))
            received += piece
            if not piece or len(received) == _HELLO.size:
                del self._strangers[stranger]
                yield stranger, drawn, bytes(received)

    def _retry(self) -> None:
        if self.outgoing is not None:
            self.outgoing.close()
        self.outgoing, self._expected, self.retry_at = None, b"", monotonic() + _PAUSE
        self._answer.clear()


def _flat(array: Any) -> Any:
    """Return the numbers of `array` as a vector over the same memory. Raises ValueError where they do not lie one after another."""
    if not array.flags.c_contiguous or not array.flags.writeable or array.dtype.kind not in "fiu":
        raise ValueError("the array must be contiguous, writeable, and of floats or integers")
    return array.reshape(-1)


def _bytes(array: Any) -> memoryview:
    return memoryview(array.view("u1"))


def _call_text(head: bytes) -> str:
    kind, count = _CALL.unpack(head)
    return f"{'sum' if kind[:1] == b's' else 'broadcast'} of {count} of type {kind[1:].decode(errors='replace')}"
