"""Blocking calls beside a loop, each in a daemon thread of its own: one that hangs in a dead storage keeps nothing waiting, nor our end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(act: Callable[..., T], *arguments: Any) -> T:
    """Return what `act` returns, or raise what it raises."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result, error = act(*arguments), None
        except BaseException as failure:  # noqa: BLE001  whoever waits gets it
            result, error = None, failure
        hand_over(loop, settle, result, error)

    threading.Thread(target=run, name=f"tm ui: {getattr(act, '__qualname__', act)}", daemon=True).start()
    return await future


def hand_over(loop: asyncio.AbstractEventLoop, act: Callable[..., object], *arguments: Any) -> None:
    """Call `act` in the loop, where that still runs."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(act, *arguments)


def fault_words(error: Exception) -> str:
    """Say for a page that we did not expect an error."""
    return f"this is a fault of trainmaster: {error!r}"


async def streamed(most: int, begin: Callable[..., Iterator[T]], *arguments: Any) -> AsyncIterator[T]:
    """Yield the items of the blocking iterator that `begin` returns, read by up to `most` at once."""
    items = begin(*arguments)
    while batch := await in_thread(lambda: list(itertools.islice(items, most))):
        for item in batch:
            yield item
