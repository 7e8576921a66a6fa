"""Hadoop YARN: an engine that asks a cluster for containers and starts them, in Python alone."""

from __future__ import annotations

from trainmaster.engines.contract import Capabilities, Engine

ENGINE = Engine(
    "yarn", client_side="trainmaster.engines.yarn.client:YarnClient", container_side="trainmaster.engines.yarn.container.bootstrap",
    capabilities=Capabilities(images=True, application_id=r"application_\d+_\d+"), is_configured="trainmaster.hadoop.conf:is_named",
    checks="trainmaster.engines.yarn.doctor:findings",
)  # fmt: skip
