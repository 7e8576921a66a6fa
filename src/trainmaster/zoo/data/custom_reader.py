"""A reader of the model file's own: `custom_data_reader(data_origin=..., records_per_task=..., **data_reader_params)`.

As in ElasticDL the reader has `create_shards()`, which gives {name: (start, count)}, and `read_records(task)`, which yields the records of
`task.shard.name` from `task.shard.start` to `task.shard.end`; it may have `metadata` and `records_output_types`.

*Alone* one worker reads its shards as they are; which are done is kept in its checkpoints. *Shared* among workers, the records of all
shards are numbered one after another, and the master gives out ranges of these numbers, as of an input `records://COUNT/SIZE`. So they are
accounted for as any input is. `create_shards()` must give the same in each worker, and `read_records` exactly the records that it is asked
for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
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


class _Reader:
    """A reader and its shards, as (name, start, count). Raises BadModel for any other object."""

    def __init__(self, make: Any, place: str, records_per_task: int, params: dict[str, Any]) -> None:
        self._reader = make(data_origin=place, records_per_task=records_per_task, **params)
        missing = [
            name for name in ("create_shards", "read_records") if not callable(getattr(self._reader, name, None))
        ]
        if missing:
            raise BadModel(f"the custom_data_reader gives a {type(self._reader).__name__} without {missing[0]}()")
        shards = self._reader.create_shards()
        self.rows = [(name, *part) for name, part in shards.items()] if isinstance(shards, dict) else list(shards or ())
        if not self.rows:
            raise BadModel(
                "create_shards() of the custom_data_reader gives no shards", mend="give {name: (start, count)}"
            )
        self.types = getattr(self._reader, "records_output_types", None)

    @property
    def metadata(self) -> Any:
        return getattr(self._reader, "metadata", None) or Metadata()

    def describe(self, record: Any) -> None:
        """Do nothing: the reader describes itself."""


class CustomReader(_Reader):
    """The source of a custom reader's shards, over `epochs`, and the form of its records: for a worker alone."""

    def __init__(self, make: Any, place: str, records_per_task: int, params: dict[str, Any], epochs: int = 1) -> None:
        super().__init__(make, place, records_per_task, params)
        self._remaining = (
            Shard(epoch * len(self.rows) + i, epoch, str(name), start, start + count)
            for epoch in range(epochs)
            for i, (name, start, count) in enumerate(self.rows)
        )

    def next(self, wait: bool | None = None) -> Shard | None:
        return next(self._remaining, None)

    def records(self, shard: Shard) -> Iterator[Any]:
        return iter(self._reader.read_records(Task(shard)))

    def close(self) -> None:
        """End the reading."""


class SharedReader(_Reader):
    """The form of a custom reader's records whose numbers the master gives out."""

    def __init__(self, make: Any, place: str, records_per_task: int, params: dict[str, Any]) -> None:
        super().__init__(make, place, records_per_task, params)
        self._ends = list(accumulate(count for _, _, count in self.rows))
        self.count = int(self._ends[-1])

    def records(self, shard: Any) -> Iterator[Any]:
        """Yield the records of a range of numbers. Raises BadModel where the reader gives others than it is asked for."""
        number = shard.start
        while number < shard.end:
            row = bisect_right(self._ends, number)
            name, start, count = self.rows[row]
            end = min(shard.end, self._ends[row])
            skipped = start - (self._ends[row] - count)  # the number of a record is its place in the shard less this
            yield from self._part(Shard(shard.number, shard.epoch, str(name), number + skipped, end + skipped))
            number = end

    def _part(self, part: Shard) -> Iterator[Any]:
        due, count = part.end - part.start, 0
        for record in self._reader.read_records(Task(part)):
            count += 1
            if count > due:
                break
            yield record
        if count != due:
            raise BadModel(
                f"read_records() of the custom_data_reader gives {'more' if count > due else count} records, and {due} are due",
                place=f"shard {part.path}, records {part.start} to {part.end}",
                mend="yield those from task.shard.start to task.shard.end, so that each is read once",
            )
