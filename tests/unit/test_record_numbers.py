"""An input that is a number of records, and no files: its shards are ranges of their numbers, each given out once an epoch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.errors import BadInput
from trainmaster.core.input.shards import RECORDS, ShardTable, place_words
from trainmaster.core.spec.job import Input
from trainmaster.data.sources import list_input
from trainmaster.master.steps import shard_listing
from trainmaster.runtime import shards
from trainmaster.runtime.reading import Reader


@given(count=st.integers(1, 3000), size=st.integers(1, 700), epochs=st.integers(1, 3), shuffle=st.booleans())
def test_each_record_is_in_one_shard_of_each_epoch(count: int, size: int, epochs: int, shuffle: bool) -> None:
    source = Input("train", f"records://{count}/{size}", as_="shards", epochs=epochs, shuffle=shuffle)
    table = ShardTable.from_listing(shard_listing(source, list_input(source)), name="train")
    assert table.count == -(-count // size)
    reader = Reader("utf-8", "strict")
    for epoch in range(epochs):
        places = [table.shard(epoch * table.count + number) for number in range(table.count)]
        assert {place.kind for place in places} == {RECORDS}
        assert sorted(record for place in places for record in reader.records(*place[1:])) == list(range(count))
    assert list(shards("train", default=source.url, epochs=epochs)) == [*range(count)] * epochs


def test_a_size_is_chosen_where_none_is_said() -> None:
    source = Input("train", "records://60000", as_="shards")
    table = ShardTable.from_listing(shard_listing(source, list_input(source)), name="train")
    assert table.count == 1000
    assert place_words(table.shard(3)._asdict()) == "records://60000, records 180 to 240"


@pytest.mark.parametrize(
    ("url", "as_", "message"),
    [
        ("records://many", "shards", "records://many is not records://COUNT"),
        ("records:60000", "shards", "is not records://COUNT"),
        ("records://0", "shards", "is not records://COUNT"),
        ("records://60000?epochs=2", "shards", "they are the key epochs of the input"),
        ("records://60000", "download", "as: shards, not download"),
    ],
)
def test_what_is_no_number_of_records_is_refused(url: str, as_: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        list_input(Input("train", url, as_=as_))
    assert refused.value.place.startswith("inputs.train.")
