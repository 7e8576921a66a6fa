"""Records reach batches through a feed that may do anything, and yet each shard is done once, when all that came of it was used."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.zoo.applying import Stop
from trainmaster.zoo.data import records
from trainmaster.zoo.data.batches import batches, window_batches
from trainmaster.zoo.data.custom_reader import SharedReader
from trainmaster.zoo.data.records import Remaining, Windows
from trainmaster.zoo.errors import BadModel
from trainmaster.zoo.training import Meter


class Form:
    def records(self, shard: Shard) -> Iterator[Any]:
        yield from shard.rows

    def describe(self, record: Any) -> None: ...


class Shard:
    """A shard of records (its number, place), of which `weights` says how many elements the feed makes of each."""

    def __init__(self, number: int, epoch: int, weights: list[int]) -> None:
        self.number, self.epoch = number, epoch
        self.rows = [(number, place, weight) for place, weight in enumerate(weights)]


class Source:
    """Shards that are free at once, or, those in `late`, only for whoever waits."""

    def __init__(self, shards: list[Shard], late: set[int]) -> None:
        self.shards, self.late = list(shards), late

    def next(self, wait: bool | None = None) -> Shard | None:
        if not self.shards or (wait is False and self.shards[0].number in self.late):
            return None
        return self.shards.pop(0)

    def close(self) -> None: ...


class Feed:
    """A feed that multiplies records by their weights, and gives them in the opposite order."""

    def __init__(self, size: int) -> None:
        self._size = size

    def chunks(self, window: Any) -> Iterator[list[Any]]:
        elements = [row[:2] for row in window.records() for _ in range(row[2])][::-1]
        for first in range(0, len(elements), self._size):
            yield elements[first : first + self._size]

    length = staticmethod(len)

    @staticmethod
    def joined(chunk: list[Any], other: list[Any]) -> list[Any]:
        return chunk + other

    @staticmethod
    def split(chunk: list[Any], size: int) -> tuple[list[Any], list[Any]]:
        return chunk[:size], chunk[size:]

    @staticmethod
    def stacked(chunk: list[Any]) -> list[Any]:
        return chunk


LISTS = st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=12)


@given(first=LISTS, second=LISTS, size=st.integers(1, 7), least=st.integers(0, 20), late=st.sets(st.integers(0, 24)))
def test_each_shard_is_done_once_all_of_it_was_used(
    first: list[list[int]], second: list[list[int]], size: int, least: int, late: set[int]
) -> None:
    shards = [
        Shard(number, epoch, row)
        for epoch, rows in enumerate((first, second))
        for number, row in enumerate(rows, 12 * epoch)
    ]
    expected = sorted(row[:2] for shard in shards for row in shard.rows for _ in range(row[2]))
    total = {shard.number: sum(row[2] for row in shard.rows) for shard in shards}
    used: list[Any] = []
    done: list[int] = []

    def report(shard: Shard, records: int) -> None:
        assert records == len(shard.rows)
        assert sum(number == shard.number for number, _ in used) == total[shard.number], "nothing of it is left"
        done.append(shard.number)

    epoch = {shard.number: shard.epoch for shard in shards}
    sizes: list[list[int]] = [[], []]
    for batch in batches(Windows(Source(shards, late), Form(), least, report=report), Feed(size), size):
        assert {epoch[number] for number, _ in batch.features} == {batch.epoch}
        sizes[batch.epoch].append(batch.size)
        used += batch.features
    assert sorted(used) == expected
    assert sorted(done) == sorted(total), "each is done once"
    if not late:
        for row in sizes:
            assert all(length == size for length in row[:-1]), "only the last one of an epoch is smaller"


def test_shards_of_the_ledger_are_not_read_again() -> None:
    shards = [Shard(number, 0, [1, 1]) for number in range(4)]
    ledger = {0, 2}
    windows = Windows(Source(shards, set()), Form(), 1, ledger=ledger, report=lambda shard, records: None)
    assert windows.first_record() == (1, 0, 1)
    assert [row for batch in batches(windows, Feed(1), 1) for row in batch.features] == [(1, 1), (1, 0), (3, 1), (3, 0)]
    assert ledger == {0, 1, 2, 3}


def test_a_window_of_one_shard_has_its_batches_alone() -> None:
    shards = [Shard(number, 0, [1] * 5) for number in range(2)]
    windows = Windows(Source(shards, set()), Form(), 0, report=lambda shard, records: None)
    sizes = []
    while (window := windows.next()) is not None:
        sizes.append([batch.size for batch in window_batches(window, Feed(3))])
    assert sizes == [[3, 2], [3, 2]]


@given(rows=LISTS, size=st.integers(1, 7))
def test_a_batch_that_is_reported_to_be_used_ends_its_shards_at_once(rows: list[list[int]], size: int) -> None:
    shards = [Shard(number, 0, row) for number, row in enumerate(rows)]
    left = {shard.number: sum(row[2] for row in shard.rows) for shard in shards}
    done: set[int] = set()
    for batch in batches(
        Windows(Source(shards, set()), Form(), 0, report=lambda shard, _: done.add(shard.number)), Feed(size), size
    ):
        for number, _ in batch.features:
            left[number] -= 1
        batch.used()
        assert {number for number, _ in batch.features if not left[number]} <= done, "before the next one is asked for"
    assert done == {*left}


class Own:
    """A reader of a model file's own. `excess`: the records that it gives beyond those of its task."""

    def __init__(self, data_origin: str, records_per_task: int, shards: Any, excess: int = 0) -> None:
        self._shards, self._excess = shards, excess

    def create_shards(self) -> Any:
        return self._shards

    def read_records(self, task: Any) -> Iterator[Any]:
        yield from ((task.shard.name, place) for place in range(task.shard.start, task.shard.end + self._excess))


class Range:
    def __init__(self, number: int, start: int, end: int) -> None:
        self.number, self.epoch, self.start, self.end = number, 0, start, end


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6), st.integers(1, 12))
def test_ranges_of_numbers_have_each_record_of_a_reader_s_shards_once(parts: list[tuple[int, int]], size: int) -> None:
    rows = [(f"shard {number}", *part) for number, part in enumerate(parts)]
    form = SharedReader(Own, "", size, {"shards": {name: part for name, *part in rows}})
    due = [(name, place) for name, start, count in rows for place in range(start, start + count)]
    assert form.count == len(due)
    ranges = [Range(first // size, first, min(first + size, form.count)) for first in range(0, form.count, size)]
    assert [record for each in ranges for record in form.records(each)] == due


@pytest.mark.parametrize(
    ("excess", "words"), [(1, "gives more records, and 3 are due"), (-1, "gives 2 records, and 3 are due")]
)
def test_a_reader_that_gives_other_records_than_it_is_asked_for_is_refused(excess: int, words: str) -> None:
    form = SharedReader(Own, "", 8, {"shards": {"a": (5, 3)}, "excess": excess})
    with pytest.raises(BadModel, match=words) as caught:
        list(form.records(Range(0, 0, 3)))
    assert caught.value.place == "shard a, records 5 to 8"


class CarelessFeed(Feed):
    """A feed that takes each field for a number."""

    def chunks(self, window: Any) -> Iterator[list[Any]]:
        for row in window.records():
            yield [float(field) for field in row]


def test_an_error_of_a_feed_is_reported_with_the_record(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "1,2\n" * 6 + "1,abc\n" + "1,2\n" * 3)
    form = records.Form({})
    windows = Windows(records.Files(str(path), "csv"), form, 1)
    with pytest.raises(ValueError, match="could not convert string to float: 'abc'") as raised:
        list(batches(windows, CarelessFeed(1), 1))
    windows.close()
    assert raised.value.__notes__ == [f"records were read up to {path}, record 7"]


def test_the_rate_is_that_of_steps_alone_and_of_the_last_second() -> None:
    now = 100.0
    meter = Meter(lambda: now)
    rates = []
    now += 50.0  # the model is prepared
    for seconds in (8.0, 0.25, 0.25, 0.5, 0.5, 0.5, 0.5):  # the first step compiles
        meter.begin()
        now += seconds
        meter.note(64)
        rates.append(meter.rate)
    assert rates == [8.0, 256.0, 256.0, 192.0, 192.0, 128.0, 128.0]


class WaitsForOthers:
    """Windows of which the others have all that are left: `next` waits."""

    def next(self) -> None:
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it waits on")


def test_a_program_that_waits_for_the_shards_of_others_ends_when_it_is_asked_to() -> None:
    """It was killed after the whole grace, and what it had predicted since its last commit was done again."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        stop = Stop()
        assert stop.next_window(WaitsForOthers()) is None  # type: ignore[arg-type]
        assert stop.has_come
        assert Stop().next_window(Windows(Remaining([]), None, 0)) is None
    finally:
        signal.signal(signal.SIGTERM, before)
