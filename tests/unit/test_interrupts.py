"""Ctrl-C in what has something to undo."""

from __future__ import annotations

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainmaster.interrupts import run, undisturbed


def press() -> None:
    signal.raise_signal(signal.SIGINT)


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
            did.append("undone")

    with pytest.raises(KeyboardInterrupt):
        run(work())
    assert did == ["undone"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_comes_when_all_is_done_is_heard() -> None:
    async def work() -> str:
        press()
        return "done"

    with pytest.raises(KeyboardInterrupt):
        run(work())


def test_without_one_it_gives_what_the_work_gives() -> None:
    async def work() -> str:
        return "done"

    async def fails() -> None:
        raise ValueError("so")

    assert run(work()) == "done"
    with pytest.raises(ValueError, match="so"):
        run(fails())
    with ThreadPoolExecutor(1) as pool:  # where signals are not handled
        assert pool.submit(lambda: run(work())).result() == "done"


def test_a_cancellation_that_is_not_ours_stays_one() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(work())


def test_nothing_is_heard_while_undisturbed() -> None:
    async def work() -> str:
        press()
        return "done"

    with undisturbed():
        press()
        assert run(work()) == "done"
    with pytest.raises(KeyboardInterrupt):
        press()
