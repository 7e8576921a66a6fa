"""Signals that ask a command to end. The first one interrupts the work; no later one interrupts the undoing of that work.

A command that starts or watches a job treats SIGTERM, SIGHUP and SIGQUIT as Ctrl-C (`interrupting`). A signal may come at any moment, also
between the start of a job and the note of its id. So that step is `postponing`: a signal finds all of it done, or nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, NoReturn, TypeVar

from trainmaster.ignored_interrupts import repeat_ignored

T = TypeVar("T")
_Action = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None
_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_DEFAULT = (signal.SIG_DFL, signal.default_int_handler)

_is_armed = False  # whether the next signal raises Interrupted
_answer: Callable[[int], bool] | None = None  # see `answering`
_postponed: list[int] = []  # the signals that came while signals are postponed
_actions: dict[signal.Signals, _Action] = {}  # the postponed signals -> what each does otherwise


class Interrupted(KeyboardInterrupt):
    """A signal asks the command to end; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """Make the first signal that asks for the end raise Interrupted; a signal that is ignored (nohup) stays ignored.

    A terminal that is closed may send several at once: those after the first have no effect until this is entered again.
    """
    if not _is_main_thread():
        yield
        return
    actions = {number: action for number in _ALL if (action := signal.getsignal(number)) in _DEFAULT}
    _arm()
    for number in actions:
        signal.signal(number, _interrupt)
    report = repeat_ignored(_arm)
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number, action in actions.items():
            signal.signal(number, action)


@contextlib.contextmanager
def answering(answer: Callable[[int], bool]) -> Iterator[None]:
    """Within, and in `interrupting`, have a signal go no further where `answer(number)`, which is called in its handler, returns True."""
    global _answer
    before, _answer = _answer, answer
    try:
        yield
    finally:
        _answer = before


def _arm() -> None:
    global _is_armed
    _is_armed = True


def interrupt(number: int) -> NoReturn:
    """End the command as the signal `number` would."""
    global _is_armed
    _is_armed = False
    raise Interrupted(number)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore further signals, so that no second Ctrl-C interrupts what the first one began."""
    if not _is_main_thread():
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
    """Act on a signal that asks for the end only when this context is left. Nested in another `postponing` this changes nothing."""
    if _actions or not _is_main_thread():
        yield
        return
    _postpone()
    try:
        yield
    finally:
        _stop_postponing()


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Within `postponing`, act on signals at once: for a step that takes long and leaves nothing behind."""
    if not _actions or not _is_main_thread():
        yield
        return
    _stop_postponing()
    try:
        yield
    finally:
        _postpone()


def run(work: Coroutine[Any, Any, T], undo: Callable[[], object]) -> T:
    """Run `work` as `asyncio.run` does; where it fails or is interrupted, call `undo` once the loop is closed.

    In asyncio's own loop a second Ctrl-C raises an exception anywhere. Here every signal after the first is ignored until all is undone.
    """
    task: asyncio.Task[T] | None = None
    first_signal = _postponed[0] if _postponed else 0  # its number; 0 while there was none

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal first_signal
        if task is not None and not task.done() and not first_signal:
            task.get_loop().call_soon_threadsafe(task.cancel)
        first_signal = first_signal or number

    async def cancellable() -> T:
        nonlocal task
        task = asyncio.create_task(work)
        if first_signal:
            task.cancel()
        return await task

    actions = _handled_signals() if _is_main_thread() else {}
    for number in actions:
        signal.signal(number, on_signal)
    try:
        outcome = asyncio.run(cancellable())
        if first_signal:  # while the loop was closed
            raise Interrupted(first_signal)
        return outcome
    except BaseException as error:
        undo()
        if first_signal and isinstance(error, asyncio.CancelledError):
            raise Interrupted(first_signal) from None
        raise
    finally:
        for number, action in actions.items():
            signal.signal(number, action)
        if first_signal and actions[signal.Signals(first_signal)] is signal.SIG_DFL:
            signal.raise_signal(first_signal)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _is_armed and not (_answer and _answer(number)):
        interrupt(number)


def _record(number: int, frame: FrameType | None) -> None:
    _postponed.append(number)


def _handled_signals() -> dict[signal.Signals, _Action]:
    """Return the signals that ask us to end, each with its present action, without those that are ignored or that our caller handles."""
    return {
        number: action for number in _ALL if (action := signal.getsignal(number)) in (*_DEFAULT, _interrupt, _record)
    }


def _postpone() -> None:
    _actions.update(_handled_signals())
    for number in _actions:
        signal.signal(number, _record)


def _stop_postponing() -> None:
    """Restore the signals' actions, and raise the first signal that came meanwhile."""
    for number, action in _actions.items():
        signal.signal(number, action)
    _actions.clear()
    if _postponed:
        first = _postponed[0]
        _postponed.clear()
        signal.raise_signal(first)


def _is_main_thread() -> bool:
    """Tell whether this is the main thread, the only one in which Python handles signals."""
    return threading.current_thread() is threading.main_thread()
