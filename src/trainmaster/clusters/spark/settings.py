"""The settings of a Spark cluster on this machine: plain data that its record keeps, checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from trainmaster.clusters.settings import Recorded, check_range
from trainmaster.core.errors import BadInput

_RESOURCE = re.compile(r"[A-Za-z][\w-]*")
_MOST_NODES = 50  # each is a JVM of 200 MB
_LEAST_MEMORY = 512  # MiB; Spark refuses an executor with less than 450


@attrs.frozen(kw_only=True)
class Settings(Recorded):
    """The settings of a cluster. Memory in MiB, for each worker; times in seconds.

    `resources`: the number of devices of each kind that every worker offers, as `{"gpu": 2}`. `properties`: any of Spark's own, which
    override ours, for the daemons and for applications that use the cluster's `spark-defaults.conf`.
    """

    nodes: int = 2
    memory: int = 4096
    cores: int = 8
    resources: Mapping[str, int] = attrs.field(factory=dict)
    node_expiry: float = 30.0
    heap: int = 256
    properties: Mapping[str, str] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        check_range("--nodes", self.nodes, 1, _MOST_NODES)
        check_range("--memory (MiB)", self.memory, _LEAST_MEMORY, 1 << 30)
        check_range("--cores", self.cores, 1, 10_000)
        check_range("--node-expiry (s)", self.node_expiry, 1, 1 << 20)
        for resource, count in self.resources.items():
            if not _RESOURCE.fullmatch(resource):
                raise BadInput(f"{resource!r} cannot be the name of a resource of Spark", place="--resource")
            check_range(f"--resource {resource}", count, 0, 10_000)
        for name in self.properties:
            if not name.startswith("spark."):
                raise BadInput(f"{name} is not a property of Spark: such names begin with spark.", place="--property")
