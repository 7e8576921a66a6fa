"""Records inside ranges of bytes, by Hadoop's rule (LineRecordReader).

A file of lines may be cut anywhere. A range that does not begin at 0 drops what it finds up to the first line end, and
reads on until the line that contains its own end, or begins there, is whole. So each line is read by exactly one
range, wherever the cuts fall, and a range may have no line. A line ends with "\\n" (a "\\r" before it is dropped too), the
last one also with the file; a byte order mark at the beginning of the file is dropped. The identity of a record is the
offset at which its line begins.

Nothing here opens a file: `read(offset, size)` is handed in and gives up to `size` bytes, none only behind the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

Read = Callable[[int, int], bytes]

CHUNK = 1024 * 1024
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def lines(read: Read, start: int = 0, end: int | None = None, chunk: int = CHUNK) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of the lines that belong to the range [start, end), without their line ends.

    The range goes to the end of the file where `end` is None.
    """
    offset, raw_lines = start, _raw_lines(read, start, chunk)
    if start:
        offset += len(next(raw_lines, b""))
    for line in raw_lines:
        if end is not None and offset > end:
            return
        yield offset, stripped(line.removeprefix(BYTE_ORDER_MARK) if offset == 0 else line)
        offset += len(line)


def _raw_lines(read: Read, offset: int, chunk: int) -> Iterator[bytes]:
    """Yield every line from `offset` on, with its line end."""
    rest: list[bytes] = []  # of a line whose end was not read yet
    while data := read(offset, chunk):
        offset += len(data)
        first, mark, behind = data.partition(b"\n")
        rest.append(first + mark)
        if not mark:
            continue
        yield b"".join(rest)
        rest.clear()
        whole, _, tail = behind.rpartition(b"\n")
        if len(whole) < len(behind) - len(tail):  # there was a line end
            for line in whole.split(b"\n"):
                yield line + b"\n"
        if tail:
            rest.append(tail)
    if rest:
        yield b"".join(rest)


def stripped(line: bytes) -> bytes:
    """Return the line without its line end."""
    if line.endswith(b"\n"):
        return line[:-2] if line.endswith(b"\r\n") else line[:-1]
    return line


def quoted(numbered_lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Join (offset, line) pairs to the records of RFC 4180: one with an odd number of quotes goes on in the next line.

    Only for whole files: a reader that begins in the middle of a file cannot know whether a line end is inside quotes.
    """
    begun, quotes = 0, 0
    record_lines: list[bytes] = []
    for offset, line in numbered_lines:
        if not record_lines:
            begun = offset
        record_lines.append(line)
        quotes += line.count(b'"')
        if quotes % 2 == 0:
            yield begun, b"\n".join(record_lines)
            record_lines, quotes = [], 0
    if record_lines:
        yield begun, b"\n".join(record_lines)
