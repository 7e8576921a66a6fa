"""Open every listening socket of ours, each as a row of one table: who listens where, who gets in, and what keeps others out.

`docs/reference/listeners.md` is made of the table. Nothing else in our code listens. multiprocessing's manager and py4j do, and have a row
too (`tests/unit/test_listeners.py`). A Unix socket is closed to other users from its first moment on, and has its name once it accepts.
Connections over TCP send at once what is written: the second write of an answer would else wait for the acknowledgement of the first, which
the other end may delay by 40 ms.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import NamedTuple

BACKLOG = 1024  # connections


class Row(NamedTuple):
    """One kind of listener. `at`: for a Unix socket a pattern of its path's end, "@" before an abstract name; else words about address and
    port.
    """

    purpose: str
    process: str
    at: str
    members: str  # who gets in
    proof: str  # what keeps others out, and from reading along
    limits: str = ""
    kind: int = socket.SOCK_STREAM
    backlog: int = 128  # connections that wait to be accepted

    def at_path(self, path: str) -> socket.socket:
        """Return a Unix socket at `path`, in the place of an earlier one. Raises OSError."""
        draft = f"{path}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):  # of a process of this number that was killed
            os.unlink(draft)
        listener = socket.socket(socket.AF_UNIX, self.kind)
        try:
            os.fchmod(listener.fileno(), 0o600)  # Linux gives the file this mode as it makes it
            listener.bind(draft)
            if self.kind != socket.SOCK_DGRAM:
                listener.listen(self.backlog)
            os.rename(draft, path)
        except BaseException:
            listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
            raise
        return listener

    def at_name(self, name: str) -> socket.socket:
        """Return a Unix socket with an abstract name, which belongs to whoever comes first. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, self.kind)
        try:
            listener.bind(f"\0{name}")
            listener.listen(self.backlog)
        except BaseException:
            listener.close()
            raise
        return listener

    def at_address(self, address: str = "", port: int = 0) -> socket.socket:
        """Return a TCP socket at a port (0: a free one) of one address; "": of all addresses, IPv4 and IPv6 alike, since two sockets would
        have two ports. Raises OSError.
        """
        is_both = not address and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_both or ":" in address else socket.AF_INET
        listener = socket.create_server((address, port), family=family, backlog=self.backlog, dualstack_ipv6=is_both)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
        return listener


def plain_address(address: str) -> str:
    """Return a peer's address as it is written without IPv6 around it, which one of IPv4 has at a listener of all addresses."""
    return address.removeprefix("::ffff:")


_PRIVATE = "directory of mode 700, socket of mode 600"
_TLS = "TLS under the job's own certificate"
_PEER = "the kernel names the peer's user"
_PARAMETERS = "a token made from the job's"
_STRANGERS = "before the proof 256 connections of a host, 512 of all, 10 s each"
_OF_SERVER = "before the proof 64 connections of a host, 256 of all, 10 s each; headers of 4 KiB, then of 4 MiB; payloads of 8 GiB"
_FREE = "all addresses, a free port"

AGENTS_HERE = Row(
    "agents of this machine", "master", "*/agents.sock", "the job's agents", f"{_PRIVATE}; the job's token", "frames of 64 KiB",
    backlog=BACKLOG,
)  # fmt: skip
READERS_HERE = Row(
    "commands and pages", "master", "*/master.sock", "the user's commands", f"{_PRIVATE}; the job's token", "bodies of 64 KiB",
    backlog=BACKLOG,
)  # fmt: skip
BELL = Row(
    "wake-ups", "master on this machine", "*/wake.sock", "the user's other masters", _PRIVATE, "content is not read", socket.SOCK_DGRAM
)  # fmt: skip
MASTER = Row(
    "agents, feeders and commands", "master on a cluster", f"{_FREE}; 7077 in a pod", "the job's agents and feeders, the user's commands",
    f"{_TLS}; the job's token, for a feeder that of its feed", f"{_STRANGERS}; frames and bodies of 64 KiB",
    backlog=BACKLOG,
)  # fmt: skip
PAGE = Row(
    "page behind YARN's link", "master on YARN", _FREE, "YARN's proxy", "the peer's address; plain HTTP, read-only", _STRANGERS,
    backlog=BACKLOG,
)  # fmt: skip
PROGRAMS = Row(
    "reports of programs", "agent", "*/[0-9a-f]*.sock", "programs of the user, and of root", f"{_PRIVATE}; {_PEER}",
    "64 KiB before the greeting, then frames of 256 KiB",
)  # fmt: skip
FEED_HERE = Row(
    "rows of a feed",
    "agent in Spark",
    "*.feed",
    "programs of the user",
    _PRIVATE,
    "messages of 4 KiB",
    socket.SOCK_SEQPACKET,
)
FEED = Row(
    "rows of a feed", "agent in Spark", "the task's address, a free port", "the feed's feeders", f"{_TLS}; the feed's token",
    f"{_STRANGERS}; lines of 64 KiB",
    backlog=BACKLOG,
)  # fmt: skip
PARAMETERS_HERE = Row(
    "parameters on this machine", "parameter server", "*/ps-*", "programs of the job", f"{_PRIVATE}; {_PEER}; {_PARAMETERS}",
    _OF_SERVER,
)  # fmt: skip
PARAMETERS_OF_HOST = Row(
    "parameters on one host of a cluster", "parameter server", "@trainmaster-ps-*", "programs of the job",
    f"{_PEER}, at both ends; {_PARAMETERS}", _OF_SERVER,
)  # fmt: skip
PARAMETERS = Row(
    "parameters", "parameter server on a cluster", "the task's address, its port `ps`", "programs of the job", f"{_TLS}; {_PARAMETERS}",
    _OF_SERVER,
)  # fmt: skip
RING = Row(
    "sums of elastic Keras", "program", "the task's address, a free port", "the member before it in the ring",
    "each end proves that it has a key made from the job's; the sums are not encrypted", "32 connections before the proof",
)  # fmt: skip
TICKETS = Row(
    "secrets of containers", "master in Spark", _FREE, "the job's executors", f"{_TLS}; a ticket that is valid once",
    "before the proof 256 connections of a host, 512 of all, 20 s each; lines of 64 KiB", backlog=BACKLOG,
)  # fmt: skip
BRIDGE = Row(
    "jobs of an application",
    "Spark's driver",
    "*/spark/*.sock",
    "the user's commands and masters",
    _PRIVATE,
    "lines of 64 MiB",
)
CALLBACKS = Row(
    "events of Spark (py4j listens)", "Spark's driver", "127.0.0.1, a free port", "the driver's JVM",
    "an object's name of 256 random bits, without which nothing is called", "none: whoever writes much takes memory of the driver's Python",
)  # fmt: skip
SUBMITTER = Row(
    "the driver that was started",
    "`tm submit`",
    "*/spark/*.submitter",
    "the job's driver",
    _PRIVATE,
    "one connection, one line of 64 MiB",
)
RESERVATIONS = Row(
    "TensorFlowOnSpark's reservations", "Spark's driver", "all addresses, a free port or one of `TFOS_SERVER_PORT`", "nodes of the cluster",
    "each message proves the cluster's key; what is sent is readable", f"{_STRANGERS}; requests of 1 MiB",
    backlog=256,
)  # fmt: skip
QUEUES = Row(
    "queues of TFManager, where a program starts one by hand", "program", "*/listener-*", "who has its key",
    "directory of mode 700; each end proves that it has the key. The key's owner can run code there",
)  # fmt: skip
PAGES = Row(
    "pages", "`tm ui`", "127.0.0.1, port 8470; with `--listen` the address named", "the user; with `--listen` its readers",
    "a code that opens one session; with `--listen` TLS and a reader's token, or the word of a trusted proxy",
    "10 s without a request; forms of 16 KiB",
    backlog=BACKLOG,
)  # fmt: skip
PAGES_OF_PROGRAMS = Row(
    "pages of programs", "`tm ui`", "127.0.0.1, port 8570", "the user's sessions",
    "a ticket that is valid once, then a cookie of that page", "10 s without a request",
    backlog=BACKLOG,
)  # fmt: skip
ROWS = (
    AGENTS_HERE, READERS_HERE, BELL, MASTER, PAGE, PROGRAMS, FEED_HERE, FEED, PARAMETERS_HERE, PARAMETERS_OF_HOST, PARAMETERS, RING,
    TICKETS, BRIDGE, CALLBACKS, SUBMITTER, RESERVATIONS, QUEUES, PAGES, PAGES_OF_PROGRAMS,
)  # fmt: skip
