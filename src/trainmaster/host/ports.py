"""Reserve ports for programs on this host, across all jobs of a user.

The process that reserves a port holds a lock (flock) on `<runtime>/ports/<port>`, so that its death frees the port; the file names the
process, for people. Ports come from a range outside the ephemeral one, from which the kernel serves others at any moment, and must be
bindable on IPv4 and IPv6 when reserved. They stay reserved between a program's attempts, while nobody is bound to them.
Descriptors are closed on exec; a process forked out of the holder must close them, or it keeps the lock too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from trainmaster.core.errors import EngineFailed
from trainmaster.host import places, processes
from trainmaster.host.locks import lock, unlock

RANGE = (20000, 29999)
_LISTEN = "0A"  # TCP_LISTEN (net/tcp_states.h)
_ENOUGH = 1000  # ports that must remain outside the ephemeral range; with fewer the whole range is used


class Ports:
    """The ports that this process holds, in the order of the requests. Leaving the context releases them."""

    def __init__(self, span: tuple[int, int] = RANGE) -> None:
        self._span = span
        self._held: dict[int, int] = {}  # port -> descriptor

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self._held)

    def take(self, n: int = 1) -> tuple[int, ...]:
        """Reserve n more ports. Raises EngineFailed if fewer are free."""
        ports: list[int] = []
        for port in _candidates(self._span):
            if len(ports) == n:
                break
            if port not in self._held and self._reserve(port):
                ports.append(port)
        if len(ports) < n:
            for port in ports:
                self.release(port)
            raise EngineFailed(
                f"{n} free ports are needed, {len(ports)} of {self._span[0]}-{self._span[1]} are free",
                mend="end what listens there: ss -ltnp",
                anchor="no-free-port",
            )
        return tuple(ports)

    def release(self, port: int | None = None) -> None:
        """Give one port back, or all."""
        for number in [port] if port is not None else list(self._held):
            unlock(_path(number), self._held.pop(number))

    def __enter__(self) -> Ports:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _reserve(self, port: int) -> bool:
        descriptor = _lock(port)
        if descriptor is None:
            return False
        if not bindable(port):
            unlock(_path(port), descriptor)
            return False
        owner = processes.this_process()
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{owner.pid} {owner.start}\n".encode())
        self._held[port] = descriptor
        return True


def bindable(port: int) -> bool:
    """Tell whether nothing of this host is bound to the TCP port on any address, IPv4 or IPv6."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # a host without this family
                continue
            return False
    return True


def is_listening(port: int) -> bool:
    """Tell whether a process of this host listens at the TCP port, without connecting to it (proc(5), /proc/net/tcp)."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{name}") as table:  # a host without this family
            for line in table:
                words = line.split(maxsplit=4)
                if words[3] == _LISTEN and words[1].endswith(f":{port:04X}"):
                    return True
    return False


def remove_unheld() -> None:
    """Remove the lock files of processes that are gone."""
    for port in (int(name) for name in os.listdir(places.shared_dir("ports")) if name.isdigit()):
        if (descriptor := _lock(port)) is not None:
            unlock(_path(port), descriptor)


def _candidates(span: tuple[int, int]) -> Iterator[int]:
    """Yield the ports of the range that the kernel does not give out by itself, from a start that differs between processes."""
    first, last = ephemeral()
    ports = [port for port in range(span[0], span[1] + 1) if not first <= port <= last]
    if len(ports) < min(_ENOUGH, span[1] - span[0] + 1):
        ports = list(range(span[0], span[1] + 1))
    start = os.getpid() * 61 % len(ports)  # neighbours in process id begin far apart, and seldom try the same one
    yield from ports[start:]
    yield from ports[:start]


def ephemeral() -> tuple[int, int]:
    """Return the range from which the kernel gives a port to a process that names none (ip(7))."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except FileNotFoundError:
        return 32768, 60999
    return int(first), int(last)


def _path(port: int) -> Path:
    return places.shared_dir("ports") / str(port)


def _lock(port: int) -> int | None:
    """Return a descriptor that holds the port's lock, or None if another process holds it."""
    return lock(_path(port))
