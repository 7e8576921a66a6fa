"""The ports of a cluster on this machine: one block of neighbours, so that people recognise them, all free when chosen.

Blocks are outside the range from which the kernel picks ports for others, so that a daemon that comes back finds its own ports free. The
nodes share their ports: each has an address of its own, 127.0.0.2 and on, all of which are this machine (Linux answers on all of 127/8).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping

from trainmaster.core.errors import EngineFailed
from trainmaster.host.ports import bindable, ephemeral

_FIRST, _LAST, _BLOCK = 15000, 32000, 50
# The last two digits are those of Hadoop's own default ports, where they do not collide.
OFFSETS: Mapping[str, int] = {
    "namenode": 20, "namenode.http": 21,
    "datanode": 22, "datanode.http": 23, "datanode.ipc": 24,
    "resourcemanager": 32, "resourcemanager.scheduler": 30, "resourcemanager.tracker": 31,
    "resourcemanager.admin": 33, "resourcemanager.http": 38,
    "resourcemanager-2": 42, "resourcemanager-2.scheduler": 40, "resourcemanager-2.tracker": 41,
    "resourcemanager-2.admin": 43, "resourcemanager-2.http": 48,
    "node": 11, "node.localizer": 12, "node.http": 13,
    "kdc": 8, "zookeeper": 9,
}  # fmt: skip


def node_address(number: int) -> str:
    """Return the address of node `number`, from 1."""
    return f"127.0.0.{number + 1}"


def choose(
    reserved: Collection[int], preferred: Mapping[str, int] | None = None, offsets: Mapping[str, int] = OFFSETS
) -> dict[str, int]:
    """Choose ports for the names in `offsets`.

    `reserved`: the ports of other clusters, which may be down just now. `preferred`: the ports that the cluster had, used again if free.
    """
    if preferred and _free(preferred.values()):
        return dict(preferred)
    first, last = ephemeral()
    starts = [start for start in range(_FIRST, _LAST, _BLOCK) if not (first - _BLOCK < start <= last)]
    begin = os.getpid() * 61 % len(starts)  # processes that choose at once begin far apart
    for start in starts[begin:] + starts[:begin]:
        ports = {name: start + offset for name, offset in offsets.items()}
        if not set(reserved).intersection(ports.values()) and _free(ports.values()):
            return ports
    raise EngineFailed(
        f"no {_BLOCK} neighbouring ports of {_FIRST}-{_LAST} are free",
        mend="end what listens there: ss -ltnp",
        anchor="no-free-port",
    )


def listens(port: int) -> bool:
    """Tell whether a process accepts connections on this port of localhost."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free(ports: Collection[int]) -> bool:
    return all(bindable(port) for port in ports)
