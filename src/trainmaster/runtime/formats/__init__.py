"""Files of binary records: how their records are read and written, by the standard library alone.

recordio    chunks of records, as ElasticDL's users have them; a file can be cut between two chunks
    tfrecord    frames, as TensorFlow's users have them; never cut
"""


class DamagedFile(OSError):
    """A file is not what its format promises: it was cut, changed, or is of another format."""
