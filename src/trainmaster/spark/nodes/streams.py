"""Wait for the end of a stream that feeds a cluster: a StreamingContext, or a query of Structured Streaming."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_LOOK = 1.0  # s between two looks at a stream and its functions
_BATCH = 60.0  # s for a query's batch to be fed before the query is stopped in it
_PAUSE = 0.05  # s between two looks at a query's batch


def await_end(stream: Any, has_ended: Callable[[], bool], is_unwanted: Callable[[], bool]) -> None:
    """Return when the stream has ended. Raises what the stream raises.

    Where the functions have ended (`has_ended`) it is stopped at once; where it is unwanted, once what has come is fed.
    """
    is_query = hasattr(stream, "lastProgress")
    wait = stream.awaitTermination if is_query else stream.awaitTerminationOrTimeout
    try:
        while not wait(_LOOK):
            if has_ended() or is_unwanted():
                (_stop_query if is_query else _stop_context)(stream, has_ended)
    except BaseException:
        _stop_query(stream, lambda: True) if is_query else _stop_context(stream, lambda: True)
        raise


def _stop_context(context: Any, has_ended: Callable[[], bool]) -> None:
    context.stop(stopSparkContext=False, stopGraceFully=not has_ended())


def _stop_query(query: Any, has_ended: Callable[[], bool]) -> None:
    """Stop a query between two batches where it pauses there. A batch that it is stopped in is fed whole all the same."""
    limit = time.monotonic() + _BATCH
    while query.isActive and query.status["isTriggerActive"] and not has_ended() and time.monotonic() < limit:
        time.sleep(_PAUSE)
    query.stop()
