"""What a Hadoop cluster on this machine shall be like: plain data that its record keeps, checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from trainmaster.core.errors import BadInput

PROTECTIONS = ("authentication", "integrity", "privacy")
GPU = "yarn.io/gpu"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_RESOURCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]*/)?[A-Za-z][\w.-]*")  # ResourceInformation's own rule
_WORD = re.compile(r"[A-Za-z0-9][\w-]*")
_MOST_NODES = 50  # each is a JVM of 200 MB


@attrs.frozen(kw_only=True)
class Settings:
    """Sizes in MiB, times in seconds.

    `queues`: share of each in per cent; they may borrow of each other, and give back by preemption. `labels`: node number, from 1, to its
    label. `properties`: any of Hadoop's own, which go before ours: `dfs.` to hdfs-site.xml, `yarn.scheduler.capacity.` to
    capacity-scheduler.xml, `yarn.` to yarn-site.xml, all others to core-site.xml.

    With `kerberos`: `ticket_life` of users' tickets, `token_renewal` and `token_life` of delegation tokens.
    """

    nodes: int = 1
    memory: int = 4096
    cores: int = 8
    queues: Mapping[str, float] = attrs.field(factory=lambda: {"default": 100.0})
    labels: Mapping[int, str] = attrs.field(factory=dict)
    resources: Mapping[str, int] = attrs.field(factory=dict)
    node_expiry: float = 9.0
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
        _within("--nodes", self.nodes, 1, _MOST_NODES)
        _within("--memory (MiB)", self.memory, 256, 1 << 30)
        _within("--cores", self.cores, 1, 10_000)
        for queue in self.queues:
            _named("queue", queue, _WORD)
        if not self.queues or abs(sum(self.queues.values()) - 100) > 0.01 or min(self.queues.values()) <= 0:
            shares = ", ".join(f"{queue}={share:g}" for queue, share in self.queues.items())
            raise BadInput(
                f"the queues' shares make {sum(self.queues.values()):g} %, not 100: {shares}", place="--queue"
            )
        for node, label in self.labels.items():
            _within("--label", node, 1, self.nodes)
            _named("label", label, _WORD)
        for resource, count in self.resources.items():
            _named("resource", resource, _RESOURCE)
            _within(f"--resource {resource}", count, 0, 1 << 40)
        if self.kerberos and self.kerberos not in PROTECTIONS:
            raise BadInput(f"--kerberos is one of {', '.join(PROTECTIONS)}, not {self.kerberos}")

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return attrs.asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Settings:
        """Out of JSON, whose names are strings and whose tuples are lists."""
        known = {field.name for field in attrs.fields(cls)}
        given = {name: value for name, value in plain.items() if name in known}
        given["labels"] = {int(node): label for node, label in given.get("labels", {}).items()}
        given["users"] = tuple(given.get("users", ()))
        return cls(**given)


def _within(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise BadInput(f"{what} is {value}, from {least} to {most} can be had")


def _named(what: str, name: str, rule: re.Pattern[str]) -> None:
    if not rule.fullmatch(name):
        raise BadInput(f"{name!r} cannot be the name of a {what}")
