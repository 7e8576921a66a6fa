"""Make batches of the records of shards, shuffled if wanted, and count each shard only when all its records were used.

A batch has records of several shards, and a buffer for shuffling of many more. These shards are *in flight*: leased, and not done. A batch
is used once the consumer asks for the next one. While shards are in flight nothing waits for more, since the others may wait for just
these: where none is free, what is in flight is handed out, and only then is waited. So near the end of the data batches may be smaller.
"""

from __future__ import annotations

import random

from . import forks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Protocol

    class Shard(Protocol):
        """The parts of `inputs.Shard` that this module and `torch_data` use."""

        number: int
        path: str
        kind: str
        start: int
        end: int

        def records(self) -> Iterator[Any]: ...
        def done(self, records: int | None = None) -> None: ...

    class Source(Protocol):
        """A source of shards: leased ones, or those of a program that runs alone."""

        def next(self, wait: bool | None) -> Any: ...
        def close(self) -> None: ...

    Tagged = tuple[int, Any]  # the number of a shard, and a record of it


class Flight:
    """The shards of one reader that are in flight."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._shards: dict[int, Shard] = {}
        self._sizes: dict[int, int] = {}  # records of the shards that were read to their end
        self._used: dict[int, int] = {}
        self.count = 0  # shards so far

    @property
    def is_empty(self) -> bool:
        return not self._shards

    def next(self) -> Shard | None:
        """Return a shard; None where there is none now and some are in flight, or none any more."""
        shard: Shard | None = self._source.next(False if self._shards else None)
        if shard is not None:
            self._shards[shard.number], self._used[shard.number] = shard, 0
            self.count += 1
        return shard

    def read(self, number: int, records: int) -> None:
        """Note that a shard, which has so many records, was read to its end."""
        self._sizes[number] = records
        self._settle(number)

    def use(self, tagged: list[Tagged]) -> None:
        """Note that the consumer has used these records."""
        for number, _ in tagged:
            self._used[number] += 1
        for number in {number for number, _ in tagged}:
            self._settle(number)

    def close(self) -> None:
        self._source.close()

    def _settle(self, number: int) -> None:
        if self._sizes.get(number) == self._used[number]:
            del self._used[number]
            self._shards.pop(number).done(self._sizes.pop(number))


def batches(
    source: Source,
    size: int,
    shuffle: int = 0,
    seed: int = 0,
    drop_last: bool = False,
    reading: Callable[[Flight], Callable[[], Iterator[Tagged]]] | None = None,
) -> Iterator[list[Any]]:
    """Yield lists of `size` records. `reading(flight)` returns what reads the shards that there are now; by default this process does.

    `shuffle`: records in the buffer from which the next one is drawn, by `seed`.
    """
    if size < 1 or shuffle < 0:
        raise ValueError("size is at least 1, shuffle at least 0")
    began, flight, draw = forks.count, Flight(source), random.Random(seed)
    read = (reading or _reading)(flight)
    try:
        before = -1
        while before != flight.count:  # the last round got none although nothing was in flight
            before, batch = flight.count, []
            for tagged in _shuffled(read(), shuffle, draw):
                batch.append(tagged)
                if len(batch) == size:
                    yield [record for _, record in batch]
                    if forks.count != began:
                        raise RuntimeError(forks.FORKED)
                    flight.use(batch)
                    batch = []
            if batch and not drop_last:
                yield [record for _, record in batch]
            flight.use(batch)
    finally:
        if forks.count == began:
            flight.close()


def _reading(flight: Flight) -> Callable[[], Iterator[Tagged]]:
    def read() -> Iterator[Tagged]:
        while (shard := flight.next()) is not None:
            count = 0
            for record in shard.records():
                count += 1
                yield shard.number, record
            flight.read(shard.number, count)

    return read


def _shuffled(tagged: Iterator[Tagged], size: int, draw: random.Random) -> Iterator[Tagged]:
    if not size:
        yield from tagged
        return
    pool: list[Tagged] = []
    for record in tagged:
        pool.append(record)
        if len(pool) >= size:
            yield _drawn(pool, draw)
    while pool:
        yield _drawn(pool, draw)


def _drawn(pool: list[Tagged], draw: random.Random) -> Tagged:
    place = int(draw.random() * len(pool))
    pool[place], pool[-1] = pool[-1], pool[place]
    return pool.pop()
