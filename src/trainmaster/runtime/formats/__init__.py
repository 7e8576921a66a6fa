"""Files and tables that programs read as shards: how their records are read and written, by the standard library alone but for tables.

recordio    chunks of records, as ElasticDL's users have them; a file can be cut between two chunks
tfrecord    frames, as TensorFlow's users have them; never cut
sql         tables of databases, cut by ranges of a key; needs SQLAlchemy

`format_of_file` is the one place that says which format a file is of, for whoever cuts, reads or sends it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = ("sqlite", "postgresql")  # the databases whose tables are read


class DamagedFile(OSError):
    """A file is not what its format promises: it was cut, changed, or is of another format."""


LINES, PARQUET, RECORDIO, TFRECORD = "lines", "parquet", "recordio", "tfrecord"
_HEAD = 12  # bytes that tell a format
_BY_ENDING = {
    ".parquet": PARQUET,
    ".recordio": RECORDIO,
    ".tfrecord": TFRECORD,
    ".tfrecords": TFRECORD,
    **dict.fromkeys((".csv", ".json", ".jsonl", ".log", ".tsv", ".txt", ".gz", ".bz2", ".xz"), LINES),
}


def format_of_file(path: str, read_head: Callable[[int], bytes]) -> str:
    """Return the format of a file by its ending. Where the ending tells none, its first bytes do: lines, unless they are a known format's.

    `read_head(size)` returns the first bytes of the file.
    """
    by_ending = _BY_ENDING.get(os.path.splitext(path)[1].lower())
    if by_ending is not None:
        return by_ending
    from . import recordio, tfrecord

    head = read_head(_HEAD)
    return RECORDIO if recordio.is_head(head) else TFRECORD if tfrecord.is_head(head) else LINES


def is_table(url: str) -> bool:
    """Tell whether a URL, like `postgresql+psycopg://...`, is one of a database."""
    scheme, split, _ = url.partition("://")
    return bool(split) and scheme.partition("+")[0].lower() in TABLES
