"""Stream records between storage and a program: an input `as: stream` into its stdin, its stdout into an output `as: stream`.

    pieces -> thread `feed` -> pipe -> stdin | program | stdout -> pipe -> thread `record` -> part files

The pipes are the only buffers: a program that reads slowly holds the reading back, a disk that writes slowly holds the program back. A
program that closes its stdin early has had enough. An error of reading or writing ends the program, with its stdin still open: otherwise an
early end of its records would look to it like the end of them.

The threads begin once the program has been forked, and are over before its end is reported.
"""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.agent.attempt.failure import AttemptFailed, failed
from trainmaster.agent.input.side_process import LINGER, LOOK, READ, SideProcess

_PACKED = (".gz", ".bz2", ".xz", ".parquet")  # records of these have another size than their files


class Records:
    """The records of one launch.

    `source`, `sink`: the order's fields of the input and of the output; each may be None. `side_process` is needed with either.
    `on_fed(records, value)` gets the count of records fed so far, and the part of all records that this is.
    """

    def __init__(
        self, source: Mapping[str, Any] | None = None, sink: Mapping[str, Any] | None = None, side_process: SideProcess | None = None,
        on_fed: Callable[[int, float | None], None] = lambda records, value: None,
    ) -> None:  # fmt: skip
        self._source, self._sink, self._side_process, self._on_fed = source, sink, side_process, on_fed
        self._loop = asyncio.get_running_loop()
        self.failing: asyncio.Future[AttemptFailed] = self._loop.create_future()
        self.moved = self._in = 0  # bytes in and out
        self._stop, self._over = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._feed = self._record = -1  # our ends
        self.stdin: int | None = None  # the program's ends
        self.stdout: int | None = None
        if source is not None:
            self.stdin, self._feed = os.pipe2(os.O_CLOEXEC)
        if sink is not None:
            self._record, self.stdout = os.pipe2(os.O_CLOEXEC)

    def forked(self) -> None:
        """Close our copies of the program's ends: it holds its own, or could not be started."""
        for end in (self.stdin, self.stdout):
            if end is not None:
                os.close(end)
        self.stdin = self.stdout = None

    def begin(self) -> None:
        """Start the threads: the program runs."""
        feeding = self._feeding_java if _by_java(self._source) else self._feeding
        recording = self._recording_java if _by_java(self._sink) else self._recording
        for pipe, act in ((self._feed, feeding), (self._record, recording)):
            if pipe >= 0:
                thread = threading.Thread(target=self._guarded, args=(act, pipe), name=act.__name__, daemon=True)
                self._threads.append(thread)
                thread.start()

    async def finish(self) -> AttemptFailed | None:
        """Stop feeding an ended program, and keep its output to the last byte. Return the failure, if there was one."""
        self._stop.set()
        self._over.set()
        if self._threads:
            await asyncio.to_thread(self._join)
        self.close()
        await asyncio.sleep(0)  # runs the last callbacks of the threads
        return self.failing.result() if self.failing.done() else None

    def close(self) -> None:
        for pipe in (self._feed, self._record):
            if pipe >= 0:
                os.close(pipe)
        self._feed = self._record = -1

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    # -- in the threads --

    def _guarded(self, act: Callable[[int], None], pipe: int) -> None:
        try:
            act(pipe)
        except Exception as error:  # noqa: BLE001  it becomes the attempt's end
            from trainmaster.data.store.transfer import Stopped

            if not isinstance(error, Stopped):
                self._call_in_loop(
                    self._fail, failed("staging-failed" if pipe == self._feed else "upload-failed", error)
                )

    def _feeding(self, pipe: int) -> None:
        from trainmaster.core.input.splits import Piece
        from trainmaster.data.streams import feed

        assert self._source is not None
        assert self._side_process is not None
        source = self._source
        pieces = [Piece(path, start, end) for path, start, end, _ in source["pieces"]]
        sizes = {path: size for path, _, _, size in source["pieces"]}
        total = _bytes(source)

        def tell(records: int, size: int) -> None:
            self.moved += size - self._in
            self._in = size
            self._call_in_loop(self._on_fed, records, min(1.0, size / total) if total else None)

        feed(
            pieces, sizes.__getitem__, pipe, format=source["format"], epochs=source["epochs"], shuffle=source["shuffle"],
            seed=source["seed"], python=_python(self._side_process.environ), tell=tell, stop=self._stop,
        )  # fmt: skip
        self._feed = -1
        os.close(pipe)  # the end of the records

    def _recording(self, pipe: int) -> None:
        from trainmaster.data.streams import Parts

        assert self._sink is not None
        parts = Parts(self._sink["local"])
        os.set_blocking(pipe, False)
        ready = select.poll()
        ready.register(pipe, select.POLLIN)
        lingering = LINGER
        while lingering > 0:
            try:
                data = os.read(pipe, READ)
            except BlockingIOError:
                ready.poll(LOOK * 1000)
                lingering -= LOOK if self._over.is_set() else 0.0  # a process left behind holds the other end
                continue
            if not data:
                break
            self.moved += len(data)
            parts.write(data)
        parts.close()

    def _feeding_java(self, pipe: int) -> None:
        from trainmaster.agent.input import java

        assert self._source is not None
        assert self._side_process is not None

        def tell(records: int, size: int, part: float) -> None:
            self.moved += size - self._in
            self._in = size
            self._call_in_loop(self._on_fed, records, part)

        java.feed(self._source, pipe, self._side_process, self._loop, self._stop, tell)
        self._feed = -1
        os.close(pipe)  # the end of the records

    def _recording_java(self, pipe: int) -> None:
        from trainmaster.agent.input import java

        assert self._sink is not None
        assert self._side_process is not None

        def moved(size: int) -> None:
            self.moved += size

        java.record(self._sink, pipe, self._side_process, self._loop, self._over, moved)

    def _call_in_loop(self, act: Callable[..., object], *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act, *arguments)

    def _fail(self, failure: AttemptFailed) -> None:
        if not self.failing.done():
            self.failing.set_result(failure)


def _by_java(stream: Mapping[str, Any] | None) -> bool:
    """Tell whether a Hadoop class reads or writes the stream."""
    return stream is not None and "options" in stream


def _bytes(source: Mapping[str, Any]) -> int:
    """Return roughly how many bytes will be fed; 0 where the sizes of the files do not show it."""
    pieces: list[tuple[str, int, int | None, int]] = source["pieces"]
    if any(path.lower().endswith(_PACKED) for path, *_ in pieces):
        return 0
    return int(source["epochs"]) * sum((size if end is None else end) - start for _, start, end, size in pieces)


def _python(environ: Mapping[str, str]) -> str:
    """Return the program's own interpreter, which may have libraries that ours lacks."""
    return shutil.which("python3", path=environ.get("PATH")) or shutil.which("python", path=environ.get("PATH")) or ""
