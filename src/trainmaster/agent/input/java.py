"""Records through a JVM beside the program, for inputs and outputs with `format: hadoop:CLASS` (see `data.formats.hadoop_formats`).

    JVM -> pipe -> stdin | program | stdout -> pipe -> thread -> pipe -> JVM -> files of the output

The JVM that reads writes into the program's own pipe, of which we hold an end until it has told that these were all records: one that died
is no end of them. The JVM that writes gets what the program printed from us, since only we know when the program is over. Both are none of
the program's processes: they are not sampled, not counted against its memory, and not swept with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainmaster.agent.input.side_process import LINGER, LOOK, READ, SideProcess
from trainmaster.data.formats import hadoop_formats
from trainmaster.data.formats.jvm import Call, Jvm


def feed(
    given: Mapping[str, Any], pipe: int, beside: SideProcess, loop: asyncio.AbstractEventLoop, over: threading.Event,
    tell: Callable[[int, int, float], None],
) -> None:  # fmt: skip
    """Have the records of an order's input written to `pipe`. `tell(records, bytes, part of all)` now and then. Raises JavaFailed."""

    def heard(words: str) -> None:
        match words.split():
            case ["fed", records, size, part]:
                tell(int(records), int(size), min(1.0, float(part)))

    with _folder(beside) as folder:
        call = hadoop_formats.reading(given, beside.environ, beside.cwd, folder)
        if over.is_set():
            return
        with _started(call, over, stdout=pipe) as jvm:
            try:
                jvm.finish(heard, lambda line: _say(beside, loop, line))
            except Exception:
                if not over.is_set():  # else it was ended because nobody reads any more
                    raise


def record(
    made: Mapping[str, Any], pipe: int, beside: SideProcess, loop: asyncio.AbstractEventLoop, over: threading.Event,
    moved: Callable[[int], None],
) -> None:  # fmt: skip
    """Have what comes out of `pipe` written as the output's records. `moved(bytes)` now and then. Raises JavaFailed."""
    with _folder(beside) as folder:
        call = hadoop_formats.writing(made, beside.environ, beside.cwd, folder)
        read, write = os.pipe2(os.O_CLOEXEC)
        passing = threading.Thread(
            target=_pass, args=(pipe, write, over, beside.halt, moved), name="records", daemon=True
        )
        try:
            with _started(call, beside.halt, stdin=read) as jvm:
                os.close(read)
                read = -1
                passing.start()
                jvm.finish(lambda words: None, lambda line: _say(beside, loop, line))
        finally:
            if read >= 0:
                os.close(read)
            if passing.ident is None:
                os.close(write)
            else:
                passing.join()


def _say(beside: SideProcess, loop: asyncio.AbstractEventLoop, line: str) -> None:
    if line and not loop.is_closed():
        loop.call_soon_threadsafe(beside.say, f"java: {line}")


@contextlib.contextmanager
def _folder(beside: SideProcess) -> Iterator[str]:
    """For the cache and fetched jars, gone when the JVM is."""
    os.makedirs(beside.private, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="java-", dir=beside.private)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _started(call: Call, stop: threading.Event, **ends: int) -> Iterator[Jvm]:
    """A JVM, ended when `stop` is set."""
    jvm = Jvm(call, **ends)
    gone = threading.Event()

    def watch() -> None:
        while not gone.wait(LOOK):
            if stop.is_set():
                jvm.kill()

    watching = threading.Thread(target=watch, name="java-stop", daemon=True)
    watching.start()
    try:
        yield jvm
    finally:
        gone.set()
        watching.join()


def _pass(source: int, target: int, over: threading.Event, halt: threading.Event, moved: Callable[[int], None]) -> None:
    """Pass on what the program prints, to its end; where something left behind holds the pipe open, for a moment more."""
    os.set_blocking(source, False)
    os.set_blocking(target, False)
    there, room = select.poll(), select.poll()
    there.register(source, select.POLLIN)
    room.register(target, select.POLLOUT)
    lingering = LINGER
    try:
        while lingering > 0 and not halt.is_set():
            try:
                data = os.read(source, READ)
            except BlockingIOError:
                there.poll(LOOK * 1000)
                lingering -= LOOK if over.is_set() else 0.0
                continue
            if not data:
                break
            moved(len(data))
            rest = memoryview(data)
            while rest and not halt.is_set():
                try:
                    rest = rest[os.write(target, rest) :]
                except BlockingIOError:
                    room.poll(LOOK * 1000)
    except BrokenPipeError:
        pass  # the JVM has ended, and says why
    finally:
        os.close(target)
