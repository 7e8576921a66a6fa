"""Start an agent in a container of a cluster. Its spec comes by the way of its engine."""

from __future__ import annotations

import gc
import os
from importlib import import_module

from trainmaster.lazy import lazily


def main() -> int:
    """Be the agent until it is no longer needed."""
    gc.disable()  # every imported object stays: looking through them for garbage takes 8 ms of a core
    lazily()
    spec = import_module(os.environ["TRAINMASTER_CONTAINER"]).agent()  # the engine's `ContainerSide`
    from trainmaster.agent.main import run

    gc.freeze()
    gc.enable()
    return run(spec)
