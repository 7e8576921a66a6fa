"""Read shards into PyTorch. Importing this module imports torch.

    from trainmaster.runtime import torch_data

    for batch in torch_data.loader("train", 32, transform=parse, workers=2, shuffle=1000):
        ...

The loader leases shards in the program's own process (`ShardSampler`), and the workers of a `DataLoader` read them (`ShardDataset`). A
shard counts when all its records were used, that is, when the batch after them is asked for. So nothing that workers read ahead is counted
before it was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from . import shards as shards_of
from .batches import Flight, batches
from .reading import Reader

if TYPE_CHECKING:
    from .batches import Tagged

Place = tuple[int, str, str, int, int]  # a shard as workers get it: number, path, kind, start, end


class Records(IterableDataset[Any]):
    """The records of an input, for a `DataLoader` of the program's own. Each of its workers leases for itself.

    A shard counts when its last record was handed out: what such a loader reads ahead is counted before it was used. `loader` waits.
    """

    def __init__(self, name: str, transform: Callable[[Any], Any] | None = None, **options: Any) -> None:
        self.shards, self.transform = shards_of(name, **options), transform

    def __iter__(self) -> Iterator[Any]:
        return iter(self.shards) if self.transform is None else map(self.transform, self.shards)


class ShardDataset(Dataset[tuple[int, list[Any]]]):
    """Shards by their place: an element is the number of a shard and the list of its records, each put through `transform`."""

    def __init__(
        self, encoding: str | None = "utf-8", errors: str = "surrogateescape", transform: Callable[[Any], Any] | None = None
    ) -> None:  # fmt: skip
        self.encoding, self.errors, self.transform = encoding, errors, transform

    def __getitem__(self, place: Place) -> tuple[int, list[Any]]:
        number, path, kind, start, end = place
        reader = Reader(self.encoding, self.errors)
        try:
            records = list(reader.records(path, kind, start, end))
        finally:
            reader.close()
        return number, records if self.transform is None else [self.transform(record) for record in records]


class ShardSampler(Sampler[Place]):
    """The places of the shards that there are now, for a `ShardDataset`. It ends when there are none, and may be iterated again."""

    def __init__(self, flight: Flight) -> None:
        self.flight = flight

    def __iter__(self) -> Iterator[Place]:
        while (shard := self.flight.next()) is not None:
            yield shard.number, shard.path, shard.kind, shard.start, shard.end


def loader(
    name: str,
    batch: int,
    *,
    transform: Callable[[Any], Any] | None = None,
    collate: Callable[[list[Any]], Any] = default_collate,
    workers: int = 0,
    shuffle: int = 0,
    seed: int = 0,
    drop_last: bool = False,
    **options: Any,
) -> Iterator[Any]:
    """Yield batches of `batch` records of the input `name`, over all epochs.

    `transform` is called with each record, in the `workers` processes where there are any; `collate` makes a batch of a list.
    `shuffle`: records in the buffer from which the next one is drawn, by `seed`; whole shards are shuffled by the job file. `options`:
    those of `runtime.shards`, as `default`, `epochs`, `encoding`.
    """
    shards = shards_of(name, **options)

    def reading(flight: Flight) -> Callable[[], Iterator[Tagged]]:
        dataset = ShardDataset(shards._encoding, shards._errors, transform)
        loading: DataLoader[Any] = DataLoader(
            dataset, sampler=ShardSampler(flight), batch_size=None, num_workers=workers, collate_fn=_as_it_is,
            persistent_workers=workers > 0,
        )  # fmt: skip

        def read() -> Iterator[Tagged]:
            for number, records in loading:
                flight.read(number, len(records))
                for record in records:
                    yield number, record

        return read

    return map(collate, batches(shards._source(), batch, shuffle, seed, drop_last, reading))


def _as_it_is(element: Any) -> Any:
    return element
