"""Capture a program's output: read it as fast as it is written, keep it in a spool, and do not slow the program.

    program -> a pipe -> loop reads -> bounded queue -> a thread writes the spool

The loop reads, so that a report never waits for a disk; the thread writes so that a slow disk never stops the loop. While the queue is
full, reading waits, and the program with it, as it would before a slow disk of its own; when the thread has been stuck for `STUCK`
seconds, further bytes are counted and left out instead, because a dead disk must not stop a training. stdout and stderr share one pipe, as
they would share a terminal: only so is their order kept. With a `stream` output stdout is records, and goes, raw, to a descriptor of its
own. Several copies of a program have a pipe each, and each line in the spool begins with its copy's name (`worker:0.1`). An incomplete
line waits for its end, so that no two lines are mixed.

Once the program has ended, the pipes are read to their end; for only `LINGER` seconds more where a process left behind holds them open.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from trainmaster.agent.output.redactor import Redactor
from trainmaster.agent.output.spool import MIB, Spool

PIPE = 1 * MIB  # the largest that an unprivileged user may have (pipe(7))
QUEUE = 8 * MIB
STUCK = 5.0  # s
LINGER = 0.5  # s
_PROGRESS = re.compile(rb"reporter progress:\s*([0-9]{0,3}(?:\.[0-9]{1,12})?)(?=[^0-9.])")
_OVERLAP = 1024  # bytes kept: a progress line across two reads is seen, and what a shell printed last
_LONGEST = MIB  # bytes of a copy's line until it is cut
READ = 256 * 1024


class Output:
    """Collects the output of one launch. `progress` gets the values of progress lines; `grown` is called when the file grew."""

    def __init__(
        self, spool: Spool, progress: Callable[[float], None], grown: Callable[[], None] = lambda: None, records: int | None = None,
        secrets: Iterable[str] = (), copies: Sequence[str] = ("",),
    ) -> None:  # fmt: skip
        """Open the pipes. `copies`: the name of each copy, which begins its lines; "" where there is only one."""
        self.spool = spool
        self.read = 0  # bytes read so far: the sign of life for `stall`
        self.closed = False
        self._secrets = tuple(secrets)
        self._progress, self._grown = progress, grown
        self._loop = asyncio.get_running_loop()
        self._writer = _Writer(spool, self._loop, self._on_written)
        self._open: dict[int, _Stream] = {}  # by read end
        self._streams: list[_Stream] = []
        self._paused = False
        self._done = self._loop.create_future()
        self.ends: list[tuple[int, int]] = [self._pipes(name, records) for name in copies]

    def _pipes(self, name: str, records: int | None) -> tuple[int, int]:
        """Return the write ends for a copy's stdout and stderr."""
        read, write = _pipe()
        self._open[read] = stream = _Stream(name, self._secrets)
        self._streams.append(stream)
        self._loop.add_reader(read, self._ready, read)
        return os.dup(write if records is None else records), write

    def started(self) -> None:
        """Close our copies of the program's ends: it holds its own."""
        for end in itertools.chain(*self.ends):
            os.close(end)
        self.ends = []

    def write(self, text: str) -> None:
        """Put a line of our own among the program's."""
        self._writer.put(f"[trainmaster: {text}]\n".encode())

    def last_words(self) -> bytes:
        """Read what a program that has ended left in the pipes. Return the last bytes of each copy."""
        for pipe in list(self._open):
            for _ in range(PIPE // READ):
                if not self._read_once(pipe):
                    break
        return b"\n".join(stream.last for stream in self._streams)

    async def drained(self) -> None:
        """Wait for the end of both pipes, or only a moment where another process holds them; then complete the file."""
        try:
            async with asyncio.timeout(LINGER):
                await asyncio.shield(self._done)
        except TimeoutError:
            while sum(self._read_once(pipe) for pipe in list(self._open)):  # noqa: ASYNC110  other tasks get their turn
                await asyncio.sleep(0)
            for pipe in list(self._open):
                self._forget(pipe)
        await self._writer.finish()
        self.closed = True

    def _ready(self, pipe: int) -> None:
        if self._writer.waiting >= QUEUE and not self._writer.stuck:
            self._pause()
            return
        self._read_once(pipe)

    def _pause(self) -> None:
        self._paused = True
        for pipe in self._open:
            self._loop.remove_reader(pipe)
        self._loop.call_later(STUCK, self._resume)

    def _resume(self) -> None:
        if self._paused and (self._writer.waiting < QUEUE or self._writer.stuck):
            self._paused = False
            for pipe in self._open:
                self._loop.add_reader(pipe, self._ready, pipe)
        elif self._paused:
            self._loop.call_later(STUCK, self._resume)

    def _on_written(self) -> None:
        """Go on reading where it was paused: the thread has written."""
        self._grown()
        if self._paused:
            self._resume()

    def _read_once(self, pipe: int) -> bool:
        """Read once. Tell whether there was something to read."""
        try:
            data = os.read(pipe, READ)
        except BlockingIOError:
            return False
        if not data:
            self._forget(pipe)
            return False
        self.read += len(data)
        stream = self._open[pipe]
        self._find_progress(stream, data)
        if ready := stream.add(data):
            self._writer.put(ready)
        return True

    def _find_progress(self, stream: _Stream, data: bytes) -> None:
        """Find progress lines."""
        joined = stream.last + data if stream.last else data
        if b"reporter progress:" in joined:
            lines = list(_PROGRESS.finditer(joined))
            values = [value for line in lines if line[1] and (value := float(line[1])) <= 1.0]
            if values:
                self._progress(values[-1])
            if lines:
                joined = joined[lines[-1].end() :]
        stream.last = joined[-_OVERLAP:]

    def _forget(self, pipe: int) -> None:
        self._loop.remove_reader(pipe)
        os.close(pipe)
        self._writer.put(self._open.pop(pipe).rest())  # also if empty: the writer's thread ends only once it has begun
        if not self._open and not self._done.done():
            self._done.set_result(None)


class _Stream:
    """The bytes of one pipe, prepared for the spool."""

    def __init__(self, name: str, secrets: Iterable[str]) -> None:
        self.last = b""  # bytes read last
        self._lead = f"{name} ".encode() if name else b""
        self._redactor = Redactor(secrets)
        self._part = b""  # a line that is not whole

    def add(self, data: bytes) -> bytes:
        """Return the bytes that may be stored now."""
        data = self._redactor.redact(data) if self._redactor else data
        if not self._lead:
            return data
        whole, newline, self._part = (self._part + data).rpartition(b"\n")
        if newline:
            return self._with_lead(whole)
        return self.rest() if len(self._part) > _LONGEST else b""

    def rest(self) -> bytes:
        """Return the bytes that were held back."""
        part, self._part = self._part + self._redactor.rest(), b""
        return self._with_lead(part) if part and self._lead else part

    def _with_lead(self, lines: bytes) -> bytes:
        return self._lead + lines.replace(b"\n", b"\n" + self._lead) + b"\n"


def _pipe() -> tuple[int, int]:
    """Make a large pipe. Its size is a wish: a user with many pipes gets small ones (pipe-user-pages-soft)."""
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read, False)
    try:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE)
    except OSError:
        return read, write  # a small pipe serves as well, more slowly
    return read, write


class _Writer:
    """The thread that writes. It begins with the first byte and ends with the last, so that none exists when the program is forked."""

    def __init__(self, spool: Spool, loop: asyncio.AbstractEventLoop, on_written: Callable[[], None]) -> None:
        self._spool, self._loop, self._on_written = spool, loop, on_written
        self._queue: deque[bytes] = deque()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._finishing = False
        self._dropped = 0
        self.waiting = 0  # bytes
        self._moved_at = time.monotonic()
        self._finished = loop.create_future()

    @property
    def stuck(self) -> bool:
        return self.waiting > 0 and time.monotonic() - self._moved_at > STUCK

    def put(self, data: bytes) -> None:
        """Queue `data`, or count it where the queue has been full and stuck."""
        with self._news:
            if self.waiting >= QUEUE and self.stuck:
                self._dropped += len(data)
                return
            if not self.waiting:
                self._moved_at = time.monotonic()
            self._queue.append(data)
            self.waiting += len(data)
            self._news.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="output", daemon=True)
            self._thread.start()

    async def finish(self) -> None:
        """Write the queued bytes and close the file; give up on a disk that is stuck."""
        with self._news:
            self._finishing = True
            self._news.notify()
        while not self._finished.done():
            await asyncio.wait([self._finished], timeout=STUCK)
            if self.stuck:
                return

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._queue and not self._finishing:
                    self._news.wait()
                if not self._queue:
                    break
                data = self._queue.popleft()
                dropped, self._dropped = self._dropped, 0
            if dropped:
                self._spool.miss(dropped, "the disk did not answer")
            self._spool.write(data)
            with self._news:
                self.waiting -= len(data)
                self._moved_at = time.monotonic()
            self._call_in_loop(self._on_written)
        self._spool.close()
        self._call_in_loop(self._end)

    def _end(self) -> None:
        if not self._finished.done():
            self._finished.set_result(None)

    def _call_in_loop(self, act: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)
