"""ElasticDL's waits of workers for each other, on the job's barriers and locks. Alone, nobody is waited for.

worker_sync("data is there")                       # once all workers have come
with lock("index"):                                # one at a time
    ...
"""

from __future__ import annotations

from ..runtime import barrier
from ..runtime import lock as lock


def worker_sync(sync_name: str, timeout: float | None = None) -> bool:
    """Return True once all living workers have come to this name, False after `timeout` seconds. A name can be used again and again."""
    try:
        barrier(sync_name, timeout)
    except TimeoutError:
        return False
    return True


def delete_worker_sync(sync_name: str) -> None:
    """Do nothing: a name can be used again as it is."""


def delete_all_worker_sync() -> None:
    """Do nothing: names can be used again as they are."""
