"""Ctrl-C in what has something to undo."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import weakref
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from trainmaster.interrupts import Interrupted, heard, interrupting, postponing, run, undisturbed


@pytest.fixture(autouse=True)
def no_signal_is_ignored() -> Iterator[None]:
    """Have the signals heard that a shell ignores in what runs behind it (SIGINT and SIGQUIT), and nohup (SIGHUP)."""
    heard = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, action) for number, action in heard.items()}
    yield
    for number, action in before.items():
        signal.signal(number, action)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


async def done() -> str:
    return "done"


def undone(work: Coroutine[Any, Any, object], expected: type[BaseException]) -> int:
    """How often it is undone what this work, which fails so, has done."""
    times = []

    async def other() -> None:
        times.append(press())  # which is not heard, where the first one was

    with pytest.raises(expected):
        run(work, lambda: asyncio.run(other()))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return len(times)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_whose_exception_is_ignored_comes_again(number: signal.Signals) -> None:
    """The callback of a weak reference cannot raise; the lock of each module that is imported has one."""
    references: list[weakref.ref[Any]] = []

    def be_interrupted() -> None:
        referred = type("Referred", (), {})()
        references.append(weakref.ref(referred, lambda _: signal.raise_signal(number)))
        del referred
        threading.Event().wait(60)

    with interrupting(), pytest.raises(Interrupted) as caught:
        be_interrupted()
    assert caught.value.number == number


def test_the_first_one_cancels_and_no_later_one_breaks_off_the_undoing() -> None:
    did = []

    async def work() -> None:
        press()
        try:
            await asyncio.Event().wait()
        finally:
            press()
            await asyncio.to_thread(str)
            press()
            did.append("cleaned up")

    assert undone(work(), KeyboardInterrupt) == 1
    assert did == ["cleaned up"]


def test_one_that_comes_while_the_loop_is_closed_undoes_what_was_done() -> None:
    async def closing() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            press()

    async def work() -> str:
        left = asyncio.create_task(closing())
        await asyncio.to_thread(str)
        return str(left)

    assert undone(work(), KeyboardInterrupt) == 1


def test_what_fails_is_undone_and_a_cancellation_that_is_not_ours_stays_one() -> None:
    async def work(error: BaseException) -> None:
        raise error

    assert undone(work(ValueError()), ValueError) == 1
    times: list[None] = []
    with pytest.raises(asyncio.CancelledError):
        run(work(asyncio.CancelledError()), lambda: times.append(None))
    assert times == [None]


def test_without_one_it_gives_what_the_work_gives() -> None:
    assert run(done(), pytest.fail) == "done"
    with ThreadPoolExecutor(1) as pool:  # where signals are not handled
        assert pool.submit(lambda: run(done(), pytest.fail)).result() == "done"


def test_nothing_is_heard_while_undisturbed() -> None:
    with undisturbed():
        press()
        assert run(done(), pytest.fail) == "done"
    with pytest.raises(KeyboardInterrupt):
        press()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_every_signal_that_asks_for_the_end_undoes_a_submission(number: signal.Signals) -> None:
    async def work() -> None:
        signal.raise_signal(number)
        await asyncio.Event().wait()

    times: list[None] = []
    with pytest.raises(Interrupted) as end, interrupting():
        run(work(), lambda: times.append(None))
    assert (end.value.number, times) == (number, [None])


def test_what_is_postponed_is_done_first_and_what_takes_long_is_broken_off() -> None:
    did = []

    def begin() -> None:
        with interrupting(), postponing():
            signal.raise_signal(signal.SIGTERM)
            did.append("began the job")

    def upload_and_begin() -> None:
        with interrupting(), postponing():
            with heard():
                signal.raise_signal(signal.SIGHUP)
                did.append("uploaded all of it")
            did.append("began another one")

    with pytest.raises(Interrupted) as end:
        begin()
    assert (end.value.number, did) == (signal.SIGTERM, ["began the job"])
    with pytest.raises(Interrupted):
        upload_and_begin()
    assert did == ["began the job"]
    with postponing():
        pass
    with pytest.raises(KeyboardInterrupt):
        press()


def test_what_was_postponed_breaks_off_what_can_be_undone() -> None:
    """Between two steps of a submission, too, a signal undoes it."""
    times: list[None] = []

    def submit() -> None:
        with interrupting(), postponing():
            signal.raise_signal(signal.SIGTERM)
            run(asyncio.Event().wait(), lambda: times.append(None))

    with pytest.raises(Interrupted) as end:
        submit()
    assert (end.value.number, times) == (signal.SIGTERM, [None])


def test_signals_behind_the_first_do_not_break_off_what_it_has_begun() -> None:
    """A terminal that is closed sends SIGHUP, its shell another one."""
    did = []
    with interrupting():
        with contextlib.suppress(Interrupted):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        press()
        did.append("killed the job")
        with pytest.raises(Interrupted), interrupting():
            signal.raise_signal(signal.SIGTERM)
    assert did == ["killed the job"]
