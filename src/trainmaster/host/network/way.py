"""Choose by what interface and transport a container's programs reach their peers, and say so in the variables that libraries read.

NCCL, gloo, UCX and PyTorch's RPC each choose by themselves, and not always alike: gloo takes the address that the host's name means, which
Debian makes 127.0.1.1, and NCCL the first interface that it likes. Where a job asks for RDMA, NCCL is given no other transport: a job that
falls back to sockets in silence is slow without a reason that anybody sees.
"""

from __future__ import annotations

import attrs

from trainmaster.core.errors import BadInput

AUTO, TCP, RDMA = "auto", "tcp", "rdma"


@attrs.frozen
class Way:
    """The interface and the transport. `device`: of RDMA, with its port. `is_named`: whether the job has chosen them."""

    interface: str = ""
    transport: str = AUTO
    device: str = ""
    is_named: bool = False

    def variables(self) -> dict[str, str]:
        """Return what the libraries read; those of `frameworks.variables.NETWORK`."""
        variables = {}
        if self.interface:
            variables = {"GLOO_SOCKET_IFNAME": self.interface, "TP_SOCKET_IFNAME": self.interface}
        if self.interface and self.is_named:
            variables["NCCL_SOCKET_IFNAME"] = f"={self.interface}"  # of this name, not all that begin with it
        if self.transport == TCP:
            variables |= {"NCCL_NET": "Socket", "UCX_NET_DEVICES": self.interface or "all"}
        elif self.transport == RDMA:
            variables |= {"NCCL_NET": "IB", "NCCL_IB_HCA": f"={self.device}", "UCX_NET_DEVICES": self.device}
        return variables

    def chosen(self) -> dict[str, str]:
        """Return what events say of a choice that the job has made; {} where it has made none."""
        if not self.is_named:
            return {}
        facts = {"interface": self.interface, "transport": self.transport}
        return {**facts, "device": self.device} if self.device else facts


def find_way(address: str, network: str, transport: str, root: str = "/") -> tuple[str, Way]:
    """Return this host's address for the job's peers, and the way that it is on. `address`: the one by which the master is reached.

    Raises BadInput where the host has no address on `network`, or no RDMA device there that it may use. `root`: of the host's files.
    """
    from trainmaster.host.network.interfaces import address_on, interface_of

    if network:
        address = address_on(network)
    interface = interface_of(address)
    device = _device(interface, root) if transport == RDMA else ""
    return address, Way(interface, transport, device, bool(network) or transport != AUTO)


def _device(interface: str, root: str) -> str:
    """Return the RDMA port of the interface, else of one that no interface has."""
    import socket

    from trainmaster.core.spec.quantities import format_bytes
    from trainmaster.host.network.rdma import LOCKED_LEAST, UNLIMITED, locked_limit, ports

    candidates = sorted(
        (port for port in ports(root) if port.interface in (interface, "")),
        key=lambda port: port.interface,
        reverse=True,
    )
    obstacles = [port.obstacle() for port in candidates]
    limit = locked_limit()
    if "" not in obstacles:
        trouble = (
            "; ".join(obstacles)
            or f"{socket.gethostname()} has no RDMA device on {interface or 'the interface of its address'}"
        )
        mend = "name the interface of a device that every node has, or leave network.transport out: see tm doctor on the node"
    elif limit != UNLIMITED and limit < LOCKED_LEAST:
        trouble = f"programs may lock {format_bytes(limit)} of memory, too little for RDMA"
        mend = "raise the limit (ulimit -l) of what starts containers on the node: LimitMEMLOCK=infinity"
    else:
        return str(candidates[obstacles.index("")])
    raise BadInput(trouble, place=f"network.transport: {RDMA}", mend=mend, anchor="network")
