"""Files and tables that programs read as shards: how their records are read and written. Files need the standard library alone.

recordio    chunks of records, as ElasticDL's users have them; a file can be cut between two chunks
tfrecord    frames, as TensorFlow's users have them; never cut
sql         tables of databases, cut by ranges of a key; needs SQLAlchemy
"""

TABLES = ("sqlite", "postgresql")  # the databases whose tables are read


class DamagedFile(OSError):
    """A file is not what its format promises: it was cut, changed, or is of another format."""


def is_table(url: str) -> bool:
    """Tell whether a URL, like `postgresql+psycopg://...`, is one of a database."""
    scheme, split, _ = url.partition("://")
    return bool(split) and scheme.partition("+")[0].lower() in TABLES
