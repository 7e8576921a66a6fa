"""What a Kubernetes on this machine shall be like: plain data that its record keeps, checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from trainmaster.core.errors import BadInput

_RESOURCE = re.compile(
    r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?"
)  # an extended resource has a domain
_MOST_NODES = 20  # each is a kubelet and a containerd, 180 MB
_MOST_SIMULATED = 5000


@attrs.frozen(kw_only=True)
class Settings:
    """`nodes` run containers, `simulated` ones only say that they do. `memory` (MiB) and `cores` are what a node of the first kind
    offers to pods; there may be fewer cores. `resources`: what each node counts, accelerators for one; none need to be there.

    `fast_expiry`: a node that is silent is lost after seconds, as it is after minutes in a cluster that is left as it comes.
    Without `nodes` the cluster needs neither root nor containerd, and runs on ports of this machine.
    """

    nodes: int = 2
    simulated: int = 0
    memory: int = 4096
    cores: int = 8
    resources: Mapping[str, int] = attrs.field(factory=dict)
    fast_expiry: bool = False

    def __attrs_post_init__(self) -> None:
        _within("--nodes", self.nodes, 0, _MOST_NODES)
        _within("--simulated", self.simulated, 0, _MOST_SIMULATED)
        _within("--memory (MiB)", self.memory, 256, 1 << 30)
        _within("--cores", self.cores, 1, 1024)
        if not self.nodes and not self.simulated:
            raise BadInput("a cluster without any node is none", mend="give --nodes or --simulated")
        for resource, count in self.resources.items():
            if not _RESOURCE.fullmatch(resource):
                raise BadInput(
                    f"{resource!r} cannot be the name of a resource, nvidia.com/gpu for one", place="--resource"
                )
            _within(f"--resource {resource}", count, 0, 1 << 40)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return attrs.asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Settings:
        """Out of JSON."""
        known = {field.name for field in attrs.fields(cls)}
        return cls(**{name: value for name, value in plain.items() if name in known})


def _within(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise BadInput(f"{what} is {value}, from {least} to {most} can be had")
