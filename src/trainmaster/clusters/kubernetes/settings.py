"""The settings of a Kubernetes on this machine: plain data that its record keeps, checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from trainmaster.clusters.settings import Recorded, check_range
from trainmaster.core.errors import BadInput

_RESOURCE = re.compile(
    r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?"
)  # an extended resource has a domain
_MOST_NODES = 20  # each is a kubelet and a containerd, 180 MB
_MOST_SIMULATED = 5000


@attrs.frozen(kw_only=True)
class Settings(Recorded):
    """The settings of a cluster. `nodes` run containers; `simulated` nodes only report that they do.

    A node of the first kind offers `memory` (MiB) and `cores` to pods; the machine may have fewer cores. `resources`: others that each
    node offers, such as accelerators, whether the machine has them or not.

    `fast_expiry`: a silent node is lost after seconds, not after minutes as by default.
    Without `nodes` the cluster needs neither root nor containerd, and runs on ports of this machine.
    """

    nodes: int = 2
    simulated: int = 0
    memory: int = 4096
    cores: int = 8
    resources: Mapping[str, int] = attrs.field(factory=dict)
    fast_expiry: bool = False

    def __attrs_post_init__(self) -> None:
        check_range("--nodes", self.nodes, 0, _MOST_NODES)
        check_range("--simulated", self.simulated, 0, _MOST_SIMULATED)
        check_range("--memory (MiB)", self.memory, 256, 1 << 30)
        check_range("--cores", self.cores, 1, 1024)
        if not self.nodes and not self.simulated:
            raise BadInput("a cluster needs at least one node", mend="give --nodes or --simulated")
        for resource, count in self.resources.items():
            if not _RESOURCE.fullmatch(resource):
                raise BadInput(
                    f"{resource!r} cannot be the name of a resource, nvidia.com/gpu for one", place="--resource"
                )
            check_range(f"--resource {resource}", count, 0, 1 << 40)
