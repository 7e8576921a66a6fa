"""ElasticDL's reader of records of RecordIO files by their numbers, over all files together."""

from __future__ import annotations

import os
from bisect import bisect_right
from itertools import islice

from ..runtime.elsewhere import open_binary
from ..runtime.formats import recordio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class RecordIOReader:
    """The records of these files, numbered from 0 in the order of the files; `count` of them. Only headers of chunks are read at first.

    Raises DamagedFile, with file and byte.
    """

    def __init__(self, recordio_files: Sequence[str]) -> None:
        self.count = 0
        self._files: list[_File] = []
        for path in recordio_files:
            self._files.append(_File(path, self.count))
            self.count = self._files[-1].end

    def read_records(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the records from number `start` to `end`."""
        for file in self._files:
            first, last = max(start, file.start), min(end, file.end)
            if first < last:
                yield from file.records(first, last)


class _File:
    """The file whose records have the numbers from `start` to `end`."""

    def __init__(self, path: str, start: int) -> None:
        self.path, self.start, self.end = path, start, start
        self._chunks: list[tuple[int, int]] = []  # number of the first record, offset
        with open_binary(path) as file:
            self._size = file.seek(0, os.SEEK_END)

            def read(offset: int, size: int) -> bytes:
                file.seek(offset)
                return file.read(size)

            for offset, records in recordio.chunks(read, self._size, path):
                self._chunks.append((self.end, offset))
                self.end += records

    def records(self, start: int, end: int) -> Iterator[bytes]:
        first, offset = self._chunks[bisect_right(self._chunks, start, key=lambda chunk: chunk[0]) - 1]
        with open_binary(self.path) as file:
            yield from islice(recordio.records(file, self.path, offset, self._size), start - first, end - first)
