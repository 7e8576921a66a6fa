"""Shards by numbers of records: those of an input that has no files, and those of files whose job says how many records a shard has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import Script, job, role

from trainmaster.core.errors import BadInput
from trainmaster.core.input.shards import RECORDS, ShardTable, place_words
from trainmaster.core.machine.actions import Step
from trainmaster.core.machine.events import encode
from trainmaster.core.machine.snapshot import dump, load
from trainmaster.core.machine.stimuli import Did
from trainmaster.core.spec.job import Input
from trainmaster.data.sources import list_input
from trainmaster.master.steps import shard_listing
from trainmaster.runtime import shards
from trainmaster.runtime.formats import recordio
from trainmaster.runtime.reading import Reader
from trainmaster.words.events import event_line


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


def records_of_shards(**keys: Any) -> list[list[Any]]:
    """Return the records of each shard of an input."""
    source = Input("train", as_="shards", **keys)
    table = ShardTable.from_listing(shard_listing(source, list_input(source)), name="train")
    reader = Reader("utf-8", "strict")
    return [list(reader.records(*table.shard(number)[1:])) for number in range(table.count)]


def test_lines_are_cut_by_their_mean_length(tmp_path: Path) -> None:
    lines = [f"{number:03} {'x' * (number % 10)}" for number in range(1000)]
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    parts = records_of_shards(url=str(tmp_path), shard_records=50)
    assert [line for part in parts for line in part] == lines
    assert len(parts) == 20
    assert all(48 <= len(part) <= 52 for part in parts)
    assert len(records_of_shards(url=str(tmp_path))) == 1, "of 16 KiB at least"


def test_recordio_is_cut_behind_the_chunk_that_completes_a_shard(tmp_path: Path) -> None:
    records = [b"%03d" % number for number in range(100)]
    with recordio.Writer(tmp_path / "a.recordio", chunk=3 * 7) as writer:  # 7 records
        for record in records:
            writer.write(record)
    parts = records_of_shards(url=str(tmp_path), shard_records=20)
    assert [record for part in parts for record in part] == records
    assert {len(part) for part in parts[:-1]} == {21}


def test_what_cannot_be_cut_by_records_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 100)
    assert [len(part) for part in records_of_shards(url=str(tmp_path), shard_records=10, format="csv")] == [100]
    with pytest.raises(BadInput, match="the URL says how many records a shard has"):
        records_of_shards(url="records://100/10", shard_records=20)


def counted(script: Script, task: str, *counts: int) -> list[str]:
    return [event.type for event in script.report(task, "input-counted", input="train", counts=[*counts])]


def test_the_first_program_that_counts_the_records_cuts_them_for_all() -> None:
    script = Script(job(inputs={"train": {"url": "records://", "as": "shards"}}, worker=role(2)))
    script.take(Did((Step("list-inputs"),), {"listings": {"train": {"files": 0, "bytes": 0}}}))
    script.start("worker:0", "worker:1")
    assert not script.state.shards
    assert counted(script, "worker:0", 0, 20, 2) == [], "not what an agent of ours says"
    assert "input-counted" in counted(script, "worker:0", 50, 20, 2)
    assert counted(script, "worker:1", 99, 20, 2) == [], "it finds the other's count in its shards"
    line = event_line(json.loads(encode(script.log[-1])))
    assert "worker:0 counted the input train" in line, line
    for table in (script.state.shards["train"], load(dump(script.state)).shards["train"]):
        assert (table.count, table.total) == (3, 6)
        assert table.shard(2) == (2, "records://50/20?epochs=2", "records", 40, 50)


def test_records_that_the_job_counts_are_counted_by_no_program() -> None:
    script = Script(job(inputs={"train": {"url": "records://50/20", "as": "shards"}}, worker=role(1)))
    listing = {"files": [["records://50/20", 50, None, "records"]], "shards": {"size": 20}}
    script.take(Did((Step("list-inputs"),), {"listings": {"train": listing}}))
    script.start("worker:0")
    assert counted(script, "worker:0", 60, 20, 1) == []
    assert script.state.shards["train"].total == 3
