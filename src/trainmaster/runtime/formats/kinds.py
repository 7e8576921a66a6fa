"""The format of a file: the one place that says it, for all parts that cut, read or send files."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LINES, PARQUET, RECORDIO, TFRECORD = "lines", "parquet", "recordio", "tfrecord"
_BY_ENDING = {
    ".parquet": PARQUET,
    ".recordio": RECORDIO,
    ".tfrecord": TFRECORD,
    ".tfrecords": TFRECORD,
    **dict.fromkeys((".csv", ".json", ".jsonl", ".log", ".tsv", ".txt", ".gz", ".bz2", ".xz"), LINES),
}
_HEAD = 12  # bytes that tell a format


def format_of_file(path: str, read_head: Callable[[int], bytes]) -> str:
    """Return the format of a file by its ending. If the ending tells none, the first bytes tell RecordIO or TFRecord; else it has lines.

    `read_head(size)` returns the first bytes of the file.
    """
    by_ending = _BY_ENDING.get(os.path.splitext(path)[1].lower())
    if by_ending is not None:
        return by_ending
    from . import recordio, tfrecord

    head = read_head(_HEAD)
    return RECORDIO if recordio.is_head(head) else TFRECORD if tfrecord.is_head(head) else LINES
