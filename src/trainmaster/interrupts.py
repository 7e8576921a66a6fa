"""Ctrl-C in what has something to undo: the first one breaks it off, and no later one what that begins."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No second Ctrl-C breaks off what the first has begun."""
    if not _heard_here():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, for which a second Ctrl-C is an exception anywhere within the loop; here it is not heard."""
    if not _heard_here() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return asyncio.run(work)
    task: asyncio.Task[T] | None = None
    interrupted = False

    def hear(*_: object) -> None:
        nonlocal interrupted
        if task is not None and not task.done() and not interrupted:
            task.get_loop().call_soon_threadsafe(task.cancel)
        interrupted = True

    async def cancellable() -> T:
        nonlocal task
        task = asyncio.create_task(work)
        if interrupted:
            task.cancel()
        return await task

    signal.signal(signal.SIGINT, hear)
    try:
        done = asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not interrupted:
            raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt
    return done


def _heard_here() -> bool:
    """Python handles signals in its main thread alone."""
    return threading.current_thread() is threading.main_thread()
