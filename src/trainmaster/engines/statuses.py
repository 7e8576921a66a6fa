"""The words that engines and the agents in their containers share: who limits memory, and exit statuses that tell why a container ended."""

from __future__ import annotations

NO_PYTHON = 76  # none was found that is new enough
NO_DEVICES = 77  # other programs use some of the devices that were counted
OUT_OF_REACH = 78  # the agent reached no master for longer than it may work without one, or wait for its first one
# The container's engine has ended it (128 and SIGTERM). With 0 a kubelet would forget why it evicted the pod.
TERMINATED = 143

REASONS = {NO_PYTHON: "no-python", NO_DEVICES: "devices-taken", OUT_OF_REACH: "no-master"}

# Memory limits are watched by the agent, through a control group that it makes for the program; by the kernel, as the control group of the
# whole container shows; or by the engine alone, which then ends the container.
BY_AGENT, BY_KERNEL, BY_ENGINE = "agent", "kernel", "engine"
