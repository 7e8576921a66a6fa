"""Find the RDMA devices of this host (InfiniBand or RoCE), which Linux shows in /sys/class/infiniband, and what keeps us from them."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import attrs

LOCKED_LEAST = 64 * 2**20  # bytes; NCCL's buffers for one peer take some MiB, all of them locked
UNLIMITED = resource.RLIM_INFINITY


@attrs.frozen
class Port:
    """One port of a device: `mlx5_0:1`. `interface`: its network interface, "" for none. `layer`: "InfiniBand", or "Ethernet" for RoCE."""

    device: str
    number: int
    interface: str
    layer: str
    is_active: bool
    node: str  # the file by which programs open the device; "" unknown

    def __str__(self) -> str:
        return f"{self.device}:{self.number}"

    def obstacle(self) -> str:
        """Return what keeps this process from using the port, "" where nothing does."""
        if not self.is_active:
            return f"{self} is not active"
        if not self.node or not os.path.exists(self.node):
            return f"{self} cannot be opened: there is no {self.node or 'file /dev/infiniband/uverbs* of it'}"
        if not os.access(self.node, os.R_OK | os.W_OK):
            return f"{self} cannot be opened: no permission for {self.node}"
        return ""


def ports(root: str = "/") -> Iterator[Port]:
    """Yield the ports of all devices, by name. `root`: where the host's /sys and /dev are."""
    base = Path(root, "sys/class/infiniband")
    nodes = {
        _text(folder / "ibdev"): str(Path(root, "dev/infiniband", folder.name))
        for folder in Path(root, "sys/class/infiniband_verbs").glob("uverbs*")
    }
    for device in sorted(base.glob("*")):
        for port in sorted((device / "ports").glob("*"), key=lambda port: int(port.name)):
            yield Port(
                device.name, int(port.name), _interface(device, port), _text(port / "link_layer"),
                _text(port / "state").endswith("ACTIVE"), nodes.get(device.name, ""),
            )  # fmt: skip


def locked_limit() -> int:
    """Return how many bytes this process may lock in memory; UNLIMITED for all."""
    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]


def _interface(device: Path, port: Path) -> str:
    """Return the port's network interface: for RoCE that of its addresses, else that of its device with the port's number."""
    for entry in sorted((port / "gid_attrs/ndevs").glob("*")):
        if name := _text(entry):
            return name
    for interface in sorted((device / "device/net").glob("*")):
        if int(_text(interface / "dev_port") or 0) + 1 == int(port.name):
            return interface.name
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # no such file, or, of an address that is not in use, EINVAL
        return ""
