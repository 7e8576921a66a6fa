"""Keep an attempt's inputs `as: follow` up to date while its program runs."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.agent.attempt.failure import words

EVERY = 5.0  # s between two looks

log = logging.getLogger(__name__)


async def follow(
    inputs: Mapping[str, Mapping[str, Any]], folder: str, halt: threading.Event, report: Callable[..., None]
) -> None:
    """Copy what comes to the inputs into `folder`, until cancelled. A failure is reported once, and the next look tries again."""
    from trainmaster.data.following import Following

    copies = {
        name: Following(fields["url"], os.path.join(folder, fields["local"]), halt) for name, fields in inputs.items()
    }
    reported: set[tuple[str, str]] = set()
    while copies:
        for name, copy in copies.items():
            try:
                await asyncio.to_thread(copy.look)
            except Exception as error:  # noqa: BLE001  the program goes on with the files that came so far
                log.warning("the input %s cannot be followed now: %s", name, error)
                if (failure := (name, words(error))) not in reported:
                    reported.add(failure)
                    report("warned", what=f"input {name}", detail=failure[1])
        await asyncio.sleep(EVERY)
