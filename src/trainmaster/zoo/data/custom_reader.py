"""A reader of the model file's own: `custom_data_reader(data_origin=..., records_per_task=..., **data_reader_params)`.

As in ElasticDL the reader has `create_shards()`, which gives {name: (start, count)}, and `read_records(task)`, which yields the records of
`task.shard.name` from `task.shard.start` to `task.shard.end`; it may have `metadata` and `records_output_types`. No master knows such
shards, so one worker alone reads them: which are done is kept in its checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import BadModel
from ..modes import Metadata

KIND = "custom"


class Shard:
    """A shard of a custom reader. `path`: its name."""

    kind = KIND

    def __init__(self, number: int, epoch: int, name: str, start: int, end: int) -> None:
        self.number, self.epoch, self.path, self.start, self.end = number, epoch, name, start, end

    def done(self, records: int | None = None) -> None:
        """Do nothing: the ledger of `Windows` has it."""


class Task:
    """A shard in the form in which ElasticDL's readers get it: `task.shard.name`, or in older ones `task.shard_name`."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.shard_name, self.start, self.end = self, shard.path, shard.start, shard.end
        self.name = shard.path
        self.indices: list[int] = []


class CustomReader:
    """The source of a custom reader's shards, over `epochs`, and the form of its records."""

    def __init__(self, make: Any, place: str, records_per_task: int, params: dict[str, Any], epochs: int = 1) -> None:
        self._reader = make(data_origin=place, records_per_task=records_per_task, **params)
        missing = [
            name for name in ("create_shards", "read_records") if not callable(getattr(self._reader, name, None))
        ]
        if missing:
            raise BadModel(f"the custom_data_reader gives a {type(self._reader).__name__} without {missing[0]}()")
        shards = self._reader.create_shards()
        rows = [(name, *part) for name, part in shards.items()] if isinstance(shards, dict) else list(shards or ())
        if not rows:
            raise BadModel(
                "create_shards() of the custom_data_reader gives no shards", mend="give {name: (start, count)}"
            )
        self._remaining = (
            Shard(epoch * len(rows) + i, epoch, str(name), start, start + count)
            for epoch in range(epochs)
            for i, (name, start, count) in enumerate(rows)
        )
        self.types = getattr(self._reader, "records_output_types", None)

    @property
    def metadata(self) -> Any:
        return getattr(self._reader, "metadata", None) or Metadata()

    def next(self, wait: bool | None = None) -> Shard | None:
        return next(self._remaining, None)

    def records(self, shard: Shard) -> Iterator[Any]:
        return iter(self._reader.read_records(Task(shard)))

    def describe(self, record: Any) -> None:
        """Do nothing: the reader describes itself."""

    def close(self) -> None:
        """End the reading."""
