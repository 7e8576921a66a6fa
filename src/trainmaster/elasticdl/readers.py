"""ElasticDL's data readers, for a model file's `custom_data_reader` and for programs that use them by themselves.

A reader has `create_shards()`, which gives rows (name, start, count), and `read_records(task)`, which yields the records of
`task.shard.name` from `task.shard.start` to `task.shard.end`.
"""

from __future__ import annotations

import functools
import linecache
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..zoo.errors import BadModel
from ..zoo.modes import Metadata as Metadata
from .model_files import MaxComputeConfig
from .recordio_reader import RecordIOReader

_INSTEAD = "RecordIO, text, CSV, Parquet or a table of PostgreSQL or SQLite can be read: --training_data URL"


def no_maxcompute(name: str) -> BadModel:
    return BadModel(
        f"{name} reads or writes a MaxCompute table, and Trainmaster has no client of MaxCompute", mend=_INSTEAD
    )


def check_required_kwargs(required_args: Sequence[str], kwargs: Mapping[str, Any]) -> None:
    """Raise ValueError where arguments are missing."""
    missing = [name for name in required_args if name not in kwargs]
    if missing:
        raise ValueError(f"these arguments are missing: {', '.join(missing)}")


class AbstractDataReader(ABC):
    """A class to derive readers from."""

    def __init__(self, **kwargs: Any) -> None:  # noqa: B027  it takes what a reader is made with
        pass

    @abstractmethod
    def read_records(self, task: Any) -> Iterator[Any]:
        """Yield the records of a task."""

    @abstractmethod
    def create_shards(self) -> Any:
        """Return the shards: rows (name, start, count), or {name: (start, count)}."""

    @property
    def records_output_types(self) -> Any:
        """The TensorFlow types of a record; None: they are those of the first one."""
        return None

    @property
    def metadata(self) -> Metadata:
        return Metadata(column_names=None)


class RecordIODataReader(AbstractDataReader):
    """The RecordIO files of `data_dir`. Each file is a shard."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_required_kwargs(["data_dir"], kwargs)
        self._directory = str(kwargs["data_dir"])
        self._open = functools.lru_cache(maxsize=1)(lambda path: RecordIOReader([path]))

    def read_records(self, task: Any) -> Iterator[bytes]:
        yield from self._open(task.shard.name).read_records(task.shard.start, task.shard.end)

    def create_shards(self) -> list[tuple[str, int, int]]:
        paths = [os.path.join(self._directory, name) for name in sorted(os.listdir(self._directory))]
        return [(path, 0, self._open(path).count) for path in paths]


class TextDataReader(AbstractDataReader):
    """The lines of a file, as text, in shards of `records_per_task` lines."""

    def __init__(self, filename: str, records_per_task: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._filename, self._size = filename, records_per_task

    def read_records(self, task: Any) -> list[str]:  # type: ignore[override]  # ElasticDL's gives a list too
        return linecache.getlines(task.shard.name)[task.shard.start : task.shard.end]

    def create_shards(self) -> list[tuple[str, int, int]]:
        count = self.get_size()
        return [(self._filename, start, min(self._size, count - start)) for start in range(0, count, self._size)]

    def get_size(self) -> int:
        """Return the number of lines."""
        return len(linecache.getlines(self._filename))


def create_data_reader(data_origin: str, records_per_task: int | None = None, **kwargs: Any) -> AbstractDataReader:
    """Return the reader of a file or directory, by `reader_type` (CSV, RecordIO), or by the ending .csv."""
    reader_type = kwargs.get("reader_type") or ("CSV" if data_origin.endswith(".csv") else "RecordIO")
    if reader_type == "CSV":
        return TextDataReader(filename=data_origin, records_per_task=records_per_task or 1, **kwargs)
    if reader_type == "RecordIO":
        return RecordIODataReader(data_dir=data_origin)
    if reader_type == "ODPS":
        raise no_maxcompute("create_data_reader")
    raise ValueError(f"there is no reader of the type {reader_type}: it is CSV or RecordIO")


class ODPSDataReader(AbstractDataReader):
    """A reader of a MaxCompute table: a model file may import it, and cannot use it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise no_maxcompute(type(self).__name__)


class ParallelODPSDataReader(ODPSDataReader):
    def __init__(self, parse_fn: Any, **kwargs: Any) -> None:
        super().__init__()


class ODPSReader:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise no_maxcompute(type(self).__name__)


class ODPSWriter(ODPSReader):
    """A writer of a MaxCompute table, in the same way."""


def is_odps_configured() -> bool:
    """Tell whether the variables of a MaxCompute account are set."""
    return {MaxComputeConfig.PROJECT_NAME, MaxComputeConfig.ACCESS_ID, MaxComputeConfig.ACCESS_KEY} <= {*os.environ}
