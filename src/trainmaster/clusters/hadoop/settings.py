"""The settings of a Hadoop cluster on this machine: plain data that its record keeps, checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

import attrs

from trainmaster.clusters.settings import Recorded, check_range
from trainmaster.core.errors import BadInput

PROTECTIONS = ("authentication", "integrity", "privacy")
GPU = "yarn.io/gpu"
_RESOURCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]*/)?[A-Za-z][\w.-]*")  # ResourceInformation's own rule
_WORD = re.compile(r"[A-Za-z0-9][\w-]*")
_MOST_NODES = 50  # each is a JVM of 200 MB


@attrs.frozen(kw_only=True)
class Settings(Recorded):
    """The settings of a cluster. Sizes in MiB, times in seconds.

    `queues`: the share of each in per cent; they may borrow from each other, and give back by preemption. `labels`: node number, from 1, to
    its label. `properties`: any of Hadoop's own, which override ours: `dfs.` in hdfs-site.xml, `yarn.scheduler.capacity.` in
    capacity-scheduler.xml, `yarn.` in yarn-site.xml, all others in core-site.xml.

    With `kerberos`: `ticket_life` of users' tickets, `token_renewal` and `token_life` of delegation tokens.
    """

    nodes: int = 1
    memory: int = 4096
    cores: int = 8
    queues: Mapping[str, float] = attrs.field(factory=lambda: {"default": 100.0})
    labels: Mapping[int, str] = attrs.field(factory=dict)
    resources: Mapping[str, int] = attrs.field(factory=dict)
    node_expiry: float = 30.0
    master_expiry: float = 30.0
    heap: int = 256
    high_availability: bool = False
    kerberos: str = ""
    ticket_life: float = 86400.0
    token_renewal: float = 86400.0
    token_life: float = 604800.0
    users: tuple[str, ...] = ("alice", "bob")
    properties: Mapping[str, str] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        check_range("--nodes", self.nodes, 1, _MOST_NODES)
        check_range("--memory (MiB)", self.memory, 256, 1 << 30)
        check_range("--cores", self.cores, 1, 10_000)
        for queue in self.queues:
            _check_name("queue", queue, _WORD)
        if not self.queues or abs(sum(self.queues.values()) - 100) > 0.01 or min(self.queues.values()) <= 0:
            shares = ", ".join(f"{queue}={share:g}" for queue, share in self.queues.items())
            raise BadInput(
                f"the queues' shares make {sum(self.queues.values()):g} %, not 100: {shares}", place="--queue"
            )
        for node, label in self.labels.items():
            check_range("--label", node, 1, self.nodes)
            _check_name("label", label, _WORD)
        for resource, count in self.resources.items():
            _check_name("resource", resource, _RESOURCE)
            check_range(f"--resource {resource}", count, 0, 1 << 40)
        if self.kerberos and self.kerberos not in PROTECTIONS:
            raise BadInput(f"--kerberos is one of {', '.join(PROTECTIONS)}, not {self.kerberos}")

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """Return the settings of plain data from JSON, whose names are strings and whose tuples are lists."""
        labels = {int(node): label for node, label in plain.get("labels", {}).items()}
        return super().of({**plain, "labels": labels, "users": tuple(plain.get("users", ()))})


def _check_name(kind: str, name: str, rule: re.Pattern[str]) -> None:
    if not rule.fullmatch(name):
        raise BadInput(f"{name!r} cannot be the name of a {kind}")
