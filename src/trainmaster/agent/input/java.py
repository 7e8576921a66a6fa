"""Pass records through a JVM alongside the program, for inputs and outputs with `format: hadoop:CLASS` (see `data.formats.hadoop_formats`).

    JVM -> pipe -> stdin | program | stdout -> pipe -> thread -> pipe -> JVM -> files of the output

The JVM that reads writes into the program's own pipe. We hold an end of that pipe until the JVM has said that these were all records: its
death must not look like the end of them. The JVM that writes gets the program's output from us, since only we know when the program is
over. Neither is one of the program's processes: they are not sampled, not counted against its memory, and not swept with it.
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
    source: Mapping[str, Any], pipe: int, side_process: SideProcess, loop: asyncio.AbstractEventLoop, stop: threading.Event,
    tell: Callable[[int, int, float], None],
) -> None:  # fmt: skip
    """Write the records of an order's input (`source`) to `pipe`. Calls `tell(records, bytes, part of all)` at times. Raises JavaFailed."""

    def note_report(words: str) -> None:
        match words.split():
            case ["fed", records, size, part]:
                tell(int(records), int(size), min(1.0, float(part)))

    with _folder(side_process) as folder:
        call = hadoop_formats.reading(source, side_process.environ, side_process.cwd, folder)
        if stop.is_set():
            return
        with _started(call, stop, stdout=pipe) as jvm:
            try:
                jvm.finish(note_report, lambda line: _say(side_process, loop, line))
            except Exception:
                if not stop.is_set():  # else it was ended because nobody reads any more
                    raise


def record(
    sink: Mapping[str, Any], pipe: int, side_process: SideProcess, loop: asyncio.AbstractEventLoop, over: threading.Event,
    moved: Callable[[int], None],
) -> None:  # fmt: skip
    """Write the bytes from `pipe` as the records of an output (`sink`). Calls `moved(bytes)` now and then. Raises JavaFailed."""
    with _folder(side_process) as folder:
        call = hadoop_formats.writing(sink, side_process.environ, side_process.cwd, folder)
        read, write = os.pipe2(os.O_CLOEXEC)
        thread = threading.Thread(
            target=_pass, args=(pipe, write, over, side_process.halt, moved), name="records", daemon=True
        )
        try:
            with _started(call, side_process.halt, stdin=read) as jvm:
                os.close(read)
                read = -1
                thread.start()
                jvm.finish(lambda words: None, lambda line: _say(side_process, loop, line))
        finally:
            if read >= 0:
                os.close(read)
            if thread.ident is None:
                os.close(write)
            else:
                thread.join()


def _say(side_process: SideProcess, loop: asyncio.AbstractEventLoop, line: str) -> None:
    if line and not loop.is_closed():
        loop.call_soon_threadsafe(side_process.say, f"java: {line}")


@contextlib.contextmanager
def _folder(side_process: SideProcess) -> Iterator[str]:
    """Make a folder for the cache and fetched jars. It is removed when the JVM has ended."""
    os.makedirs(side_process.private, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="java-", dir=side_process.private)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _started(call: Call, stop: threading.Event, **ends: int) -> Iterator[Jvm]:
    """Start a JVM, which is ended when `stop` is set."""
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
    """Pass on the program's output to its end; for only a moment more where a process left behind holds the pipe open."""
    os.set_blocking(source, False)
    os.set_blocking(target, False)
    readable, writable = select.poll(), select.poll()
    readable.register(source, select.POLLIN)
    writable.register(target, select.POLLOUT)
    lingering = LINGER
    try:
        while lingering > 0 and not halt.is_set():
            try:
                data = os.read(source, READ)
            except BlockingIOError:
                readable.poll(LOOK * 1000)
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
                    writable.poll(LOOK * 1000)
    except BrokenPipeError:
        pass  # the JVM has ended, and says why
    finally:
        os.close(target)
