"""A connection of a worker, or of another server, with a parameter server: messages over a Unix socket, or over TCP with TLS.

On a Unix socket large payloads go through shared memory. The worker makes it, one region for each direction, and its descriptor goes over
the socket (SCM_RIGHTS, unix(7)). A region has no name (memfd_create(2)), and is sealed against shrinking: a page that went away would end
the server by SIGBUS. A payload that does not fit goes over the socket, and the worker makes a larger region for the next one.

A request has one answer, and the next request comes after that. So what a region holds stays until the next message of its direction, and
no longer: a caller that wants an array for longer copies it.

An address is `unix:PATH`, `unix:@NAME` (an abstract name, which processes of one network namespace share) or `HOST:PORT`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import socket
import struct
import sys
from collections import deque

from ...runtime.network.listeners import PARAMETERS, PARAMETERS_HERE, PARAMETERS_OF_HOST
from ...runtime.network.pinned import trusting
from ..errors import ServerError
from .messages import (
    HEADER_LIMIT,
    PAYLOAD_LIMIT,
    PREFIX,
    SHARED,
    Malformed,
    Prefix,
    buffers,
    bytes_of,
    head_of,
    parse_arrays,
    parse_header,
    parts_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, TypeVar

    from numpy.typing import NDArray

    from .messages import Arrays, Header

    Met = TypeVar("Met")

TO_SERVER, TO_WORKER = "to-server", "to-worker"  # regions
_SHARED_FROM = 16 * 1024  # bytes of a payload that is worth the region
_REGION = 2**21  # bytes of the smallest
_BUFFERS = 64  # that one call sends
_REACHED_WITHIN = 10.0  # s, for a connection and its handshake, and for what is said first
_DESCRIPTOR = socket.CMSG_SPACE(struct.calcsize("i"))


class Closed(ConnectionError):
    """The other end closed the connection, or broke it."""


class Elsewhere(ServerError):
    """At the other end is another server than the one that was looked for."""


class Message:
    """A message that came. `arrays` are views: copy what is to be kept until after the next message."""

    __slots__ = ("arrays", "header", "payload")

    def __init__(self, header: Header, arrays: dict[str, NDArray[Any]], payload: int) -> None:
        self.header, self.arrays, self.payload = header, arrays, payload

    @property
    def op(self) -> str:
        return str(self.header.get("op", ""))

    def whole(self, name: str) -> int:
        """Return a whole number of at least 0 out of the header. Raises Malformed."""
        value = self.header.get(name)
        if type(value) is not int or not 0 <= value < 2**62:
            raise Malformed(f"{name} of a message {self.op!r} must be a whole number, and is {value!r}")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of texts out of the header; an empty one where it is anything else."""
        value = self.header.get(name)
        return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


class Connection:
    """One end. It waits where its socket does; on a socket that does not, `receive` returns None and `flush` False."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.is_local = connected.family == socket.AF_UNIX
        self.header_limit, self.payload_limit = HEADER_LIMIT, PAYLOAD_LIMIT
        self._regions: dict[str, mmap.mmap] = {}
        self._descriptors: list[int] = []  # that came
        self._unsent: deque[memoryview] = deque()
        self._begin_message()

    # -- regions --

    def offer_region(self, direction: str, size: int) -> None:
        """Make shared memory for payloads of this direction, and send it to the server. For a worker, on a Unix socket."""
        size = max(_REGION, 1 << (size - 1).bit_length())
        descriptor = os.memfd_create("trainmaster-ps", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            content = head_of({"op": "region", "direction": direction, "size": size}, 0)
            self.flush()
            sent = socket.send_fds(self.socket, [content], [descriptor])
            self.socket.sendall(content[sent:])
            self._regions[direction] = mmap.mmap(descriptor, size)
        except OSError as error:
            raise Closed(str(error)) from error
        finally:
            os.close(descriptor)

    def take_region(self, header: Header) -> None:
        """Map the region that a message `region` brought. Raises Malformed."""
        direction, size = header.get("direction"), header.get("size")
        if not self._descriptors:
            raise Malformed("a region without a descriptor")
        descriptor = self._descriptors.pop(0)
        try:
            if direction not in (TO_SERVER, TO_WORKER) or type(size) is not int or not 0 < size <= PAYLOAD_LIMIT:
                raise Malformed("no region")
            is_sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            if not is_sealed or os.fstat(descriptor).st_size < size:
                raise Malformed("a region that could shrink, or is smaller than it says")
            self._regions[direction] = mmap.mmap(descriptor, size)
        except OSError as error:
            raise Malformed(f"no region: {error}") from None
        finally:
            os.close(descriptor)

    def open_limits(self) -> None:
        """Take messages of all sizes: the other end has shown the token."""
        self.header_limit, self.payload_limit = HEADER_LIMIT, PAYLOAD_LIMIT

    @property
    def is_sent(self) -> bool:
        return not self._unsent

    def room(self, direction: str) -> int:
        """Return the bytes of a region; 0: there is none."""
        return len(self._regions.get(direction, b""))

    # -- sending --

    def send(self, header: Header, arrays: Arrays | None = None, direction: str = "") -> None:
        """Queue a message, and send as much as goes. `direction`: of the region for its payload, where that is large. Raises Closed."""
        arrays = arrays or {}
        region = self._regions.get(direction)
        if region is not None:
            names, parts, size = parts_of(arrays)
            if _SHARED_FROM <= size <= len(region):
                view = memoryview(region)
                for begin, array in parts:
                    view[begin : begin + array.nbytes] = bytes_of(array)
                self._unsent.append(memoryview(head_of({**header, "arrays": names}, size, SHARED)))
                self.flush()
                return
        self._unsent.extend(memoryview(part) for part in buffers(header, arrays))
        self.flush()

    def flush(self) -> bool:
        """Send what is queued, and tell whether all of it went. Raises Closed."""
        try:
            while self._unsent:
                self._sent(self._send_some())
        except OSError as error:
            if not _is_wait(error):
                raise Closed(str(error)) from error
        return not self._unsent

    def _send_some(self) -> int:
        if _is_tls(self.socket):
            return self.socket.send(self._unsent[0])
        return self.socket.sendmsg([part for part, _ in zip(self._unsent, range(_BUFFERS), strict=False)])

    def _sent(self, count: int) -> None:
        while count:
            if count < len(self._unsent[0]):
                self._unsent[0] = self._unsent[0][count:]
                return
            count -= len(self._unsent.popleft())

    # -- receiving --

    def receive(self) -> Message | None:
        """Return the next message. Raises Closed and Malformed."""
        try:
            while True:
                while self._done < len(self._space):
                    count = self._receive_into(self._space[self._done :])
                    if not count:
                        raise Closed("the other end closed the connection")
                    self._done += count
                message = self._advance()
                if message is not None:
                    return message
        except OSError as error:
            if _is_wait(error):
                return None
            if isinstance(error, Closed):
                raise
            raise Closed(str(error)) from error

    def shut_down(self) -> None:
        """Have both ends, and whoever waits here, find the connection closed. For any thread."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(
                self.socket, socket.SHUT_RDWR
            )  # that of TLS would have a thread which sends now send in clear

    def close(self) -> None:
        self.shut_down()
        with contextlib.suppress(OSError):
            self.socket.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _receive_into(self, space: memoryview) -> int:
        if not self.is_local:
            return self.socket.recv_into(space)
        count, ancillary, _, _ = self.socket.recvmsg_into([space], _DESCRIPTOR, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors += struct.unpack(f"{len(content) // 4}i", content)
        if len(self._descriptors) > 1:
            raise Malformed("more than one descriptor with a message")
        return count

    def _begin_message(self) -> None:
        self._space, self._done = memoryview(bytearray(PREFIX.size)), 0
        self._prefix: Prefix | None = None
        self._header: Header | None = None

    def _advance(self) -> Message | None:
        """Take in the part of a message that is whole, and return the message where it was the last part."""
        if self._prefix is None:
            self._prefix = Prefix(self._space, self.header_limit, self.payload_limit)
            self._space, self._done = memoryview(bytearray(self._prefix.header)), 0
            return None
        payload = self._space
        if self._header is None:
            self._header = parse_header(self._space)
            payload = memoryview(b"")
            if self._prefix.payload and not self._prefix.is_shared:
                self._space, self._done = memoryview(_uninitialized(self._prefix.payload)), 0
                return None
        if self._prefix.is_shared:
            payload = self._shared(self._prefix.payload)
        message = Message(self._header, parse_arrays(self._header, payload), self._prefix.payload)
        self._begin_message()
        return message

    def _shared(self, size: int) -> memoryview:
        assert self._header is not None
        direction = TO_WORKER if self._header.get("op") == "answer" else TO_SERVER
        region = self._regions.get(direction)
        if region is None or size > len(region):
            raise Malformed(f"a payload of {size:,} bytes in a region that does not exist or is smaller")
        return memoryview(region)[:size]


def connect(address: str, certificate: str = "") -> Connection:
    """Connect to a server, and wait for it at most _REACHED_WITHIN seconds each time. `certificate`: the one (PEM) that it must show over
    TCP. Raises OSError.
    """
    if address.startswith("unix:"):
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.settimeout(_REACHED_WITHIN)
            local.connect(unix_name(address))
            if peer_user(local) not in (os.getuid(), 0):  # an abstract name belongs to whoever comes first
                raise PermissionError(f"another user listens at {address}")
        except BaseException:
            local.close()
            raise
        return Connection(local)
    if not certificate:
        raise ConnectionError(f"{address}: over TCP the job's certificate is needed")
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise ConnectionError(f"{address!r} is no HOST:PORT")
    plain = socket.create_connection((host.strip("[]"), int(port)), _REACHED_WITHIN)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secured = trusting(certificate).wrap_socket(plain)
        notice_silence(secured)
    except BaseException:
        plain.close()
        raise
    return Connection(secured)


def first_reached(
    addresses: Iterable[str], certificate: str, whom: str, greet: Callable[[Connection], Met]
) -> tuple[Connection, Met]:
    """Return the first connection that `greet` accepted, and what `greet` returned. Raises OSError or Elsewhere after the last address;
    another exception of `greet` passes at once.
    """
    reasons, elsewhere = [], list[Elsewhere]()
    for address in addresses:
        try:
            connection = connect(address, certificate)
        except OSError as error:
            reasons.append(f"{address}: {error}")
            continue
        try:
            return connection, greet(connection)
        except OSError as error:
            connection.close()
            reasons.append(f"{address}: {error}")
        except Elsewhere as error:  # it has got the address of one that has gone
            connection.close()
            elsewhere.append(error)
        except BaseException:
            connection.close()
            raise
    if elsewhere and not reasons:
        raise elsewhere[0]
    raise ConnectionError(f"{whom} cannot be reached: {'; '.join(reasons) or 'it has no address yet'}")


def check_index(answer: Message, index: int) -> None:
    """Raise Elsewhere where a hello was answered by another server than `index`."""
    if answer.header.get("index", index) != index:
        raise Elsewhere(str(answer.header.get("error")))


def listen_at(addresses: Sequence[str]) -> list[socket.socket]:
    """Listen at each address. Skip an abstract name that another user's process holds, if there is another address. Raises OSError."""
    listeners = []
    for address in addresses:
        try:
            listeners.append(listen(address))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or len(addresses) == 1 or not _is_of_another_user(address):
                raise
            with contextlib.suppress(OSError):  # whoever had the name has just ended
                listeners.append(listen(address))
                continue
            print(f"ps: {address} is taken: workers of this host come over TCP too", file=sys.stderr, flush=True)
    return listeners


def _is_of_another_user(address: str) -> bool:
    """Tell whether an abstract name is taken by another user, who saw it before this server restarted."""
    if not address.startswith("unix:@"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.settimeout(_REACHED_WITHIN)
            asking.connect(unix_name(address))
            return peer_user(asking) not in (os.getuid(), 0)
        except OSError:  # nobody accepts there
            return True


def listen(address: str) -> socket.socket:
    """Listen at an address, without waiting in `accept`. A socket's file that is there is replaced."""
    if address.startswith("unix:"):
        name = unix_name(address)
        is_abstract = name.startswith("\0")
        listener = PARAMETERS_OF_HOST.at_name(name[1:]) if is_abstract else PARAMETERS_HERE.at_path(name)
    else:
        host, _, port = address.rpartition(":")
        listener = PARAMETERS.at_address(host.strip("[]"), int(port))
    listener.setblocking(False)
    return listener


def accept(listener: socket.socket, tls: ssl.SSLContext | None) -> tuple[Connection, str]:
    """Accept a connection that does not wait. Return it and its peer's IP address. Over TCP it must speak TLS. Raises OSError."""
    plain, address = listener.accept()
    try:
        if plain.family == socket.AF_UNIX:
            if peer_user(plain) not in (os.getuid(), 0):
                raise PermissionError("another user's process")
            plain.setblocking(False)
            return Connection(plain), "127.0.0.1"
        assert tls is not None
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setblocking(False)
        notice_silence(plain)
        return Connection(tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)), str(address[0])
    except BaseException:
        plain.close()
        raise


def peer_user(connected: socket.socket) -> int:
    """Return the user of the process at the other end of a Unix socket."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])


def unix_name(address: str) -> str:
    name = address.removeprefix("unix:")
    return f"\0{name[1:]}" if name.startswith("@") else name


def notice_silence(connected: socket.socket) -> None:
    """Have the kernel end a TCP connection whose other end is silent for 10 s, as one behind a cut network is."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 4), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3)):
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)


def _is_tls(connected: socket.socket) -> bool:
    return hasattr(connected, "selected_alpn_protocol")


def _is_wait(error: OSError) -> bool:
    """Tell whether a socket that does not wait would have to."""
    return isinstance(error, BlockingIOError) or type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError")


def _uninitialized(size: int) -> Any:
    import numpy

    return numpy.empty(size, numpy.uint8)
