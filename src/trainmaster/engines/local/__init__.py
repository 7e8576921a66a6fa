"""The local engine: one machine shared by all jobs of a user, without a daemon."""

from __future__ import annotations

from trainmaster.engines.contract import Capabilities, Engine
from trainmaster.engines.statuses import BY_AGENT

ENGINE = Engine(
    "local", client_side="trainmaster.engines.local.client:LocalClient",
    master_side="trainmaster.engines.local.engine:master_side",
    capabilities=Capabilities(on_this_machine=True, memory_limit=BY_AGENT),
)  # fmt: skip
