"""Find the address of this host on the network that a job names: an interface, or a range in CIDR notation. The job's peers use it."""

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
    """Return an address of this host on that network, an IPv4 one if there are several. Raises BadInput where it has none."""
    addresses = list(_addresses())
    for interface, address in addresses:
        if interface == network or ("/" in network and _within(address, network)):
            return address
    listing = ", ".join(f"{address} on {interface}" for interface, address in addresses)
    raise BadInput(
        f"{socket.gethostname()} has no address on {network}; it has {listing}", place=f"network: {network}",
        mend="name an interface or a range that every node has", anchor="network",
    )  # fmt: skip


def interface_of(address: str) -> str:
    """Return the interface of this host that has the address, "" where none has."""
    return next((name for name, other in _addresses() if other == address), "")


def check(network: str) -> None:
    """Raise BadInput for an invalid range."""
    if "/" in network:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError as error:
            mend = "write 10.1.0.0/16, or the name of an interface"
            raise BadInput(str(error), place=f"network: {network}", mend=mend, anchor="network") from error


def _addresses() -> Iterator[tuple[str, str]]:
    """Yield (interface, its first address) for IPv4, then for IPv6. Link-local addresses, which name no host to others, are left out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                ifreq = fcntl.ioctl(query, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                yield name, socket.inet_ntoa(ifreq[20:24])
    with contextlib.suppress(FileNotFoundError), open("/proc/net/if_inet6") as table:
        for address, _, _, _, _, name in map(str.split, table):
            parsed = ipaddress.IPv6Address(int(address, 16))
            if not parsed.is_link_local:
                yield name, str(parsed)


def _within(address: str, network: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
