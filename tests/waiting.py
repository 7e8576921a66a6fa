"""Waiting for a condition: what tests do instead of sleeping.

The limit is generous, for it is reached only by a failure; the pause between two looks is short, so that a pass is quick. It grows with
the time waited so far, to a twentieth of it at most, for looks take time of those who are waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT = 180.0  # s; a machine shared with many others may be slow
PAUSE, LONGEST_PAUSE = 0.01, 0.05  # s


def until(condition: Callable[[], T], limit: float = LIMIT, what: str | Callable[[], object] = "") -> T:
    """The first true value of `condition()`. Fails the test after `limit` seconds, saying what it waited for."""
    start = time.monotonic()
    while not (value := condition()):
        if (waited := time.monotonic() - start) > limit:
            raise AssertionError(f"waited {limit} s for {_named(condition, what)}")
        time.sleep(_pause(waited))
    return value


async def until_async(
    condition: Callable[[], T | Awaitable[T]], limit: float = LIMIT, what: str | Callable[[], object] = ""
) -> T:
    """The same in a loop; `condition` may be a coroutine function."""
    start = time.monotonic()
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if (waited := time.monotonic() - start) > limit:
            raise AssertionError(f"waited {limit} s for {_named(condition, what)}")
        await asyncio.sleep(_pause(waited))


def _pause(waited: float) -> float:
    return min(max(PAUSE, waited / 20), LONGEST_PAUSE)


def _named(condition: object, what: str | Callable[[], object]) -> object:
    if callable(what):
        return what()
    return what or getattr(condition, "__qualname__", condition)
