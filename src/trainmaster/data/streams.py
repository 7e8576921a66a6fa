"""Streams carry records into a program's standard input and out of its standard output.

In: `feed` writes the records of a task's pieces, epoch after epoch. The pipe is the only buffer: a program that reads slowly makes us wait.
One that closes its input early has had enough, which is not an error. With `shuffle` the pieces are dealt in a random order and their
records drawn from a buffer of `buffer` records (as tf.data and WebDataset do); a file of `format: bytes` has no records, and stays whole.
The order follows from (seed, epoch) alone, so it can be repeated.

Out: `Parts` cuts a program's output into files of about one size, at the ends of records; they are committed with
its attempt.
"""

from __future__ import annotations

import os
import random
import select
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import attrs

from trainmaster.core.input.splits import Piece
from trainmaster.data.formats.formats import BYTES, format_of, records
from trainmaster.data.store.transfer import Stopped, writing

T = TypeVar("T")

PART_SIZE = 512 * 1000 * 1000
BUFFER = 10_000  # records
_BATCH = 256 * 1024  # bytes handed to the pipe at once
_PATIENCE = 0.5  # s between two looks at whether to stop


@attrs.frozen(slots=True)
class Fed:
    """The amount that was fed to a program. `early`: the program closed its input before the end."""

    records: int
    bytes: int
    early: bool = False


def feed(
    pieces: Sequence[Piece],
    sizes: Callable[[str], int],
    pipe: int,
    *,
    format: str = "auto",  # noqa: A002  the key's name
    epochs: int = 1,
    shuffle: bool = False,
    seed: int = 0,
    buffer: int = BUFFER,
    python: str = "",
    tell: Callable[[int, int], None] | None = None,
    stop: threading.Event | None = None,
) -> Fed:
    """Write the records to the descriptor `pipe`, which the caller closes. `tell(records, bytes)` now and then.

    `sizes` gives the size of a piece's file. Raises Stopped once `stop` is set, even while the program does not read.
    """
    os.set_blocking(pipe, False)
    count = written = 0
    batch: list[bytes] = []
    size = 0
    try:
        for epoch in range(epochs):
            for record, end in _epoch(pieces, sizes, format, python, (seed, epoch) if shuffle else None, buffer):
                batch.append(record + end)
                size += len(record) + len(end)
                count += 1
                if size >= _BATCH:
                    _write_to_pipe(pipe, b"".join(batch), stop)
                    written, size = written + size, 0
                    batch.clear()
                    if tell is not None:
                        tell(count, written)
        _write_to_pipe(pipe, b"".join(batch), stop)
    except BrokenPipeError:
        return Fed(count, written, early=True)
    if tell is not None:
        tell(count, written + size)
    return Fed(count, written + size)


def _epoch(
    pieces: Sequence[Piece],
    sizes: Callable[[str], int],
    name: str,
    python: str,
    order: tuple[int, int] | None,
    buffer: int,
) -> Iterator[tuple[bytes, bytes]]:
    """Return the records of one epoch, each with the bytes that follow it. `order`: seed and epoch, where they are shuffled."""
    if order is None:
        return _read(pieces, sizes, name, python)
    # Only `random()`, the one method whose sequence Python promises to keep.
    draw = random.Random(f"{order[0]}/{order[1]}").random
    dealt = sorted(pieces, key=lambda piece: (piece.path, piece.start))
    for i in range(len(dealt) - 1, 0, -1):  # Fisher and Yates
        j = int(draw() * (i + 1))
        dealt[i], dealt[j] = dealt[j], dealt[i]
    records_in_order = _read(dealt, sizes, name, python)
    return records_in_order if name == BYTES else shuffled(records_in_order, draw, buffer)


def _read(
    pieces: Iterable[Piece], sizes: Callable[[str], int], name: str, python: str
) -> Iterator[tuple[bytes, bytes]]:
    for piece in pieces:
        end = format_of(name, piece.path).end
        for record in records(piece, sizes(piece.path), name, python):
            yield record, end


def shuffled(stream: Iterable[T], draw: Callable[[], float], buffer: int) -> Iterator[T]:
    """Yield each record once, drawn from a buffer that is kept full while there are more."""
    pool: list[T] = []
    for record in stream:
        if len(pool) < buffer:
            pool.append(record)
            continue
        place = int(draw() * len(pool))
        pool[place], record = record, pool[place]
        yield record
    while pool:
        place = int(draw() * len(pool))
        pool[place], pool[-1] = pool[-1], pool[place]
        yield pool.pop()


def _write_to_pipe(pipe: int, data: bytes, stop: threading.Event | None) -> None:
    rest = memoryview(data)
    ready = select.poll()
    ready.register(pipe, select.POLLOUT)
    while rest:
        if stop is not None and stop.is_set():
            raise Stopped
        try:
            rest = rest[os.write(pipe, rest) :]
        except BlockingIOError:
            ready.poll(_PATIENCE * 1000)


class Parts:
    """A writer of a stream output's records to files `part-00000`, ... of a directory."""

    def __init__(self, directory: str, size: int = PART_SIZE) -> None:
        self.directory, self.size = directory, size
        self.names: list[str] = []
        self._file = -1
        self._length = 0
        self._whole = True  # the bytes written so far end with a record
        os.makedirs(directory, exist_ok=True)
        for old in Path(directory).glob("part-[0-9]*"):
            old.unlink()  # of an attempt before

    def write(self, data: bytes) -> None:
        """Append output of the program, cut anywhere."""
        while data:
            if self._length >= self.size and self._whole:
                self._end()
            if self._length + len(data) <= self.size:
                cut = len(data)
            else:  # the first record end at or behind the size
                cut = data.find(b"\n", max(self.size - self._length - 1, 0)) + 1 or len(data)
            self._append(data[:cut])
            data = data[cut:]

    def close(self) -> list[str]:
        """Return the names of all parts. A stream without any record has one empty part."""
        if not self.names:
            self._begin()
        if self._file >= 0:
            self._end()
        return self.names

    def _append(self, data: bytes) -> None:
        if self._file < 0:
            self._begin()
        rest = memoryview(data)
        with writing(self._path(), len(data)):
            while rest:
                rest = rest[os.write(self._file, rest) :]
        self._length += len(data)
        self._whole = data.endswith(b"\n")

    def _begin(self) -> None:
        self.names.append(f"part-{len(self.names):05}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with writing(self._path()):
            self._file = os.open(self._path(), flags, 0o666)
        self._length = 0

    def _end(self) -> None:
        file, self._file = self._file, -1
        os.close(file)
        self._length = 0

    def _path(self) -> str:
        return os.path.join(self.directory, self.names[-1])
