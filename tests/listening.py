"""Find the listening sockets of processes, and their rows in the table of listeners."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path

from trainmaster.runtime.network.listeners import ROWS, Row

_LISTENS = 0x10000  # the flag in /proc/net/unix of a socket that accepts
_DATAGRAMS = "0002"  # the type there of one that takes datagrams
_TCP_LISTENS = "0A"


def rows_of(processes: Mapping[int, str]) -> dict[Row, set[str]]:
    """Return the places where processes listen, by the rows that may have them. Fails where one is in no row.

    `processes`: pid -> what it is, as rows name it. Rows of one process with the same address are not told apart.
    """
    found: dict[Row, set[str]] = {}
    for process, what in processes.items():
        for place, _ in places(process):
            rows = [row for row in ROWS if row.process.startswith(what) and _is_at(row, place)]
            assert rows, f"{place} of {what} {process} is in no row"
            for row in rows:
                found.setdefault(row, set()).add(place)
    return found


def ports(process: int) -> list[int]:
    """Return the TCP ports on which a process listens."""
    return sorted(port for _, port in places(process) if port)


def _is_at(row: Row, place: str) -> bool:
    """Tell whether a row has the place: a path, an abstract name, or an address."""
    if place.startswith("/proc/self/fd/"):  # of the folder, which a short path names by a descriptor
        return fnmatchcase(os.path.basename(place), os.path.basename(row.at))
    if row.at.startswith(("*", "@")):
        return fnmatchcase(place, row.at)
    return row.at.startswith(place)


def places(process: int) -> Iterator[tuple[str, int]]:
    """Yield where a process listens: the path of a Unix socket, or words about an address and the port."""
    folder = Path("/proc", str(process))
    sockets = set()
    for entry in os.listdir(folder / "fd"):
        try:
            sockets.add(os.readlink(folder / "fd" / entry))
        except FileNotFoundError:  # it is closed by now
            continue
    for line in (folder / "net" / "unix").read_text(errors="replace").splitlines()[1:]:
        _, _, _, flags, kind, _, number, *path = line.split()
        if path and f"socket:[{number}]" in sockets and (int(flags, 16) & _LISTENS or kind == _DATAGRAMS):
            yield re.sub(r"\.\d+$", "", path[0]), 0  # the kernel keeps the name that it was bound with
    for table in ("tcp", "tcp6"):
        for line in (folder / "net" / table).read_text().splitlines()[1:]:
            local, state, number = (line.split()[column] for column in (1, 3, 9))
            if state == _TCP_LISTENS and f"socket:[{number}]" in sockets:
                parts = [local[at : at + 8] for at in range(0, len(local.partition(":")[0]), 8)]
                address = ip_address(b"".join(bytes.fromhex(part)[::-1] for part in parts))
                word = (
                    "all addresses"
                    if address.is_unspecified
                    else "127.0.0.1"
                    if address.is_loopback
                    else "the task's address"
                )
                yield word, int(local.partition(":")[2], 16)
