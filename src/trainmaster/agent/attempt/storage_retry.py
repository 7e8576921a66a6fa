"""Work on a storage that may be away for a while: it is begun again until the storage is back, for as long as the job says.

What a program took hours for is not thrown away for a NameNode that is restarted. Each piece of work is tried some times by itself
(`data.store.transfer`), which bridges seconds; this is for minutes. What no waiting mends fails at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from trainmaster.agent.attempt.failure import words
from trainmaster.agent.attempt.place import Place
from trainmaster.core.errors import StorageFailed

AGAIN = 5.0  # s between two tries
LOOK = 0.2  # s between two looks whether it is still wished
AWAY = {
    errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH,
    errno.EAGAIN, errno.EBUSY, errno.EIO, errno.ESTALE,
}  # fmt: skip

log = logging.getLogger(__name__)


async def outlasting(
    place: Place, halt: threading.Event, report: Callable[..., Any], act: Callable[..., Any], given: Sequence[Any]
) -> Any:
    """What `act` gives in a thread. A storage that is away is waited for up to the job's patience from its first failure on, which is
    reported.
    """
    end = None
    while True:
        try:
            return await place.threads.run(act, *given)
        except OSError as failure:
            if halt.is_set() or not _is_away(failure):
                raise
            if end is None:
                end = time.monotonic() + place.patience
                report("warned", what="its storage is away", detail=words(failure))
            if time.monotonic() > end:
                raise
            log.warning("it is tried again: %s", failure)
        again = time.monotonic() + AGAIN
        while time.monotonic() < again and not halt.is_set():  # noqa: ASYNC110  threads look at `halt`, too
            await asyncio.sleep(LOOK)


def _is_away(failure: OSError) -> bool:
    """Whether a storage has said so: ours tell it in words, with a mend, as an error of their own or as its cause."""
    said = failure.__cause__ if isinstance(failure, StorageFailed) else failure
    return bool(getattr(failure, "mend", "")) and getattr(said, "errno", None) in AWAY
