"""An engine in the tests alone, which knows of Trainmaster only what the contract of engines says.

It is like a cloud that has a machine for each container: a network namespace on a bridge. Nobody ever waits, and no machine is used again.
All machines see the same files, and reach each other alone. One process, which a test starts, is the cloud (`cloud`).
"""

from __future__ import annotations

from trainmaster.engines.contract import Capabilities, Engine

ENGINE = Engine(
    "netns", client_side="trainmaster_netns.engine:NetnsClient", container_side="trainmaster_netns.engine",
    capabilities=Capabilities(own_network=True, application_id=r"netns-.+-[a-z2-7]{6}"),
)  # fmt: skip
