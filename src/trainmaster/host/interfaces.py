"""The address of this host that a job's peers are to use, where the job names a network: an interface, or a range in CIDR notation."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator

from trainmaster.core.errors import BadInput

_SIOCGIFADDR = 0x8915  # linux/sockios.h


def address_on(network: str) -> str:
    """An address of this host on that network; of several an IPv4 one. Raises BadInput where it has none."""
    there = list(_addresses())
    for interface, address in there:
        if interface == network or ("/" in network and _within(address, network)):
            return address
    told = ", ".join(f"{address} on {interface}" for interface, address in there)
    raise BadInput(
        f"{socket.gethostname()} has no address on {network}; it has {told}", place=f"network: {network}",
        mend="name an interface or a range that every node has", anchor="network",
    )  # fmt: skip


def check(network: str) -> None:
    """Raises BadInput for a range that is none."""
    if "/" in network:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError as error:
            mend = "write 10.1.0.0/16, or the name of an interface"
            raise BadInput(str(error), place=f"network: {network}", mend=mend, anchor="network") from error


def _addresses() -> Iterator[tuple[str, str]]:
    """(interface, its first address), of IPv4, then of IPv6; link-local ones, which name no host to others, are left out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                told = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                yield name, socket.inet_ntoa(told[20:24])
    with contextlib.suppress(FileNotFoundError), open("/proc/net/if_inet6") as table:
        for address, _, _, _, _, name in map(str.split, table):
            found = ipaddress.IPv6Address(int(address, 16))
            if not found.is_link_local:
                yield name, str(found)


def _within(address: str, network: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
