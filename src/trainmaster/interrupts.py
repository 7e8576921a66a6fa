"""Signals that ask a command to end: the first one breaks off what has something to undo, and no later one what that begins.

SIGTERM, SIGHUP and SIGQUIT mean to a command that watches the same as Ctrl-C does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupted(KeyboardInterrupt):
    """A signal asks the command to end; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """Have each signal that asks for the end raise Interrupted; one that is ignored (nohup) stays so."""
    if not _heard_here():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted(number)

    ours = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No second Ctrl-C breaks off what the first has begun."""
    if not _heard_here():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *_ENDING)}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def run(work: Coroutine[Any, Any, T], undo: Callable[[], object]) -> T:
    """As `asyncio.run`, for what has to be undone where it fails or is broken off: by `undo`, when its loop is closed.

    A second Ctrl-C is an exception anywhere within asyncio's loop. Here none is heard after the first, until all is undone.
    """
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

    hearing = _heard_here() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hearing:
        signal.signal(signal.SIGINT, hear)
    try:
        done = asyncio.run(cancellable())
        if interrupted:  # while the loop was closed
            raise KeyboardInterrupt
        return done
    except BaseException as error:
        undo()
        if interrupted and isinstance(error, asyncio.CancelledError):
            raise KeyboardInterrupt from None
        raise
    finally:
        if hearing:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _heard_here() -> bool:
    """Python handles signals in its main thread alone."""
    return threading.current_thread() is threading.main_thread()
