"""Retry work on a storage that may be away for a while, until the storage is back, for as long as the job says.

The output of hours is not thrown away because a NameNode restarts. `data.store.transfer` retries each piece of work by itself, which
bridges seconds; this module bridges minutes. An error that waiting cannot mend fails at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from trainmaster.agent.attempt.failure import words
from trainmaster.agent.attempt.place import Place
from trainmaster.core.errors import AWAY, StorageFailed

AGAIN = 5.0  # s between two tries
LOOK = 0.2  # s between two checks whether the attempt was stopped

log = logging.getLogger(__name__)


async def retrying_storage(
    place: Place, halt: threading.Event, report: Callable[..., Any], act: Callable[..., Any], arguments: Sequence[Any]
) -> Any:
    """Return the result of `act`, run in a thread.

    A storage that is away is waited for, up to the job's patience from its first failure on, which is reported.
    """
    deadline = None
    while True:
        try:
            return await place.threads.run(act, *arguments)
        except OSError as failure:
            if halt.is_set() or not _is_away(failure):
                raise
            if deadline is None:
                deadline = time.monotonic() + place.patience
                report("warned", what="its storage is away", detail=words(failure))
            if time.monotonic() > deadline:
                raise
            log.warning("it is tried again: %s", failure)
        retry_at = time.monotonic() + AGAIN
        while time.monotonic() < retry_at and not halt.is_set():  # noqa: ASYNC110  threads look at `halt`, too
            await asyncio.sleep(LOOK)


def _is_away(failure: OSError) -> bool:
    """Tell whether the failure says that the storage is away. Our storages say so by an errno with a mend: in the error or in its cause."""
    cause = failure.__cause__ if isinstance(failure, StorageFailed) else failure
    return bool(getattr(failure, "mend", "")) and getattr(cause, "errno", None) in AWAY
