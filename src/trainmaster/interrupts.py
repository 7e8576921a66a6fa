"""Signals that ask a command to end: the first one breaks off what has something to undo, and no later one what that begins.

SIGTERM, SIGHUP and SIGQUIT mean to a command that starts or watches a job the same as Ctrl-C does (`interrupting`). They may come at any
moment, also between the start of a job and the note of its id; so that step is `postponing`: a signal finds all of it done, or nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
_Action = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None
_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_DEFAULT = (signal.SIG_DFL, signal.default_int_handler)

_is_armed = False  # whether the next signal raises Interrupted
_postponed: list[int] = []  # the signals that came while they are postponed
_actions: dict[signal.Signals, _Action] = {}  # of those that are postponed at present: what each does else


class Interrupted(KeyboardInterrupt):
    """A signal asks the command to end; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """Have the first signal that asks for the end raise Interrupted; one that is ignored (nohup) stays so.

    A terminal that is closed may send several at once: those behind the first are not heard before this is entered again.
    """
    global _is_armed
    if not _heard_here():
        yield
        return
    actions = {number: action for number in _ALL if (action := signal.getsignal(number)) in _DEFAULT}
    for number in actions:
        signal.signal(number, _interrupt)
    _is_armed = True
    try:
        yield
    finally:
        for number, action in actions.items():
            signal.signal(number, action)


def interrupt(number: int) -> NoReturn:
    """End the command as the signal `number` would."""
    global _is_armed
    _is_armed = False
    raise Interrupted(number)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No second Ctrl-C breaks off what the first has begun."""
    if not _heard_here():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ALL}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


@contextlib.contextmanager
def postponing() -> Iterator[None]:
    """Act on a signal that asks for the end only when this is over. Within another one this changes nothing."""
    if _actions or not _heard_here():
        yield
        return
    _postpone()
    try:
        yield
    finally:
        _act()


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Within `postponing`, act on signals at once: for a step that takes long and leaves nothing behind."""
    if not _actions or not _heard_here():
        yield
        return
    _act()
    try:
        yield
    finally:
        _postpone()


def run(work: Coroutine[Any, Any, T], undo: Callable[[], object]) -> T:
    """As `asyncio.run`, for what has to be undone where it fails or is broken off: by `undo`, when its loop is closed.

    A second Ctrl-C is an exception anywhere within asyncio's loop. Here none is heard after the first, until all is undone.
    """
    task: asyncio.Task[T] | None = None
    first = _postponed[0] if _postponed else 0  # the number of the first signal

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if task is not None and not task.done() and not first:
            task.get_loop().call_soon_threadsafe(task.cancel)
        first = first or number

    async def cancellable() -> T:
        nonlocal task
        task = asyncio.create_task(work)
        if first:
            task.cancel()
        return await task

    actions = _heard() if _heard_here() else {}
    for number in actions:
        signal.signal(number, hear)
    try:
        done = asyncio.run(cancellable())
        if first:  # while the loop was closed
            raise Interrupted(first)
        return done
    except BaseException as error:
        undo()
        if first and isinstance(error, asyncio.CancelledError):
            raise Interrupted(first) from None
        raise
    finally:
        for number, action in actions.items():
            signal.signal(number, action)
        if first and actions[signal.Signals(first)] is signal.SIG_DFL:
            signal.raise_signal(first)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _is_armed:
        interrupt(number)


def _note(number: int, frame: FrameType | None) -> None:
    _postponed.append(number)


def _heard() -> dict[signal.Signals, _Action]:
    """Return the signals that ask us for the end, with what they do now: not those that are ignored, or that our caller handles."""
    return {number: action for number in _ALL if (action := signal.getsignal(number)) in (*_DEFAULT, _interrupt, _note)}


def _postpone() -> None:
    _actions.update(_heard())
    for number in _actions:
        signal.signal(number, _note)


def _act() -> None:
    """Have signals act again, first of all one that came meanwhile."""
    for number, action in _actions.items():
        signal.signal(number, action)
    _actions.clear()
    if _postponed:
        first = _postponed[0]
        _postponed.clear()
        signal.raise_signal(first)


def _heard_here() -> bool:
    """Python handles signals in its main thread alone."""
    return threading.current_thread() is threading.main_thread()
