"""TFRecord files as shards: each record once, in order; packed files; files that are damaged. Spark's are in test_tfrecords.py."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.input.shards import TFRECORD, ShardTable
from trainmaster.core.input.splits import File, Listing
from trainmaster.core.spec.job import Input
from trainmaster.data.formats.formats import shard_files
from trainmaster.runtime import shards
from trainmaster.runtime.formats import DamagedFile, tfrecord
from trainmaster.runtime.formats.crc32c import masked_crc32c
from trainmaster.runtime.formats.tfrecord_frames import frame
from trainmaster.runtime.reading import Reader

CHECKSUM = masked_crc32c()


def content_of(records: list[bytes]) -> bytes:
    return b"".join(frame(record, CHECKSUM) for record in records)


def read(content: bytes) -> list[bytes]:
    return list(tfrecord.records(io.BytesIO(content), "x", len(content)))


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_all_records_are_read_in_order_packed_or_not(records: list[bytes]) -> None:
    content = content_of(records)
    assert read(content) == records
    assert read(gzip.compress(content)) == records


def test_a_record_whose_length_looks_like_gzip_is_none() -> None:
    records = [bytes(0x8B1F), b"next"]
    content = content_of(records)
    assert content.startswith(b"\x1f\x8b")
    assert read(content) == records


def test_a_file_is_a_shard(tmp_path: Path) -> None:
    paths = [tmp_path / "a.tfrecord", tmp_path / "b.tfrecords", tmp_path / "empty.tfrecord"]
    written = [[b"a%d" % number for number in range(50)], [content_of([b"inside"]) * 3, b""], []]
    for path, records in zip(paths, written, strict=True):
        path.write_bytes(content_of(records))
    listing = Listing("/", tuple(File(str(path), path.stat().st_size) for path in paths))
    table = ShardTable.make(shard_files(Input("train", str(tmp_path), as_="shards"), listing), name="train")
    reader = Reader("utf-8", "strict")
    places = [table.shard(number) for number in range(table.total)]
    assert [(shard.path, shard.kind, shard.start) for shard in places] == [
        (str(path), TFRECORD, 0) for path in paths[:2]
    ]
    assert [list(reader.records(*shard[1:])) for shard in places] == written[:2]
    reader.close()
    assert list(shards("x", default=str(tmp_path))) == written[0] + written[1]
    (tmp_path / "part-0").write_bytes(gzip.compress(content_of([b"packed"])))
    assert list(shards("x", default=str(tmp_path / "part-0"), format="tfrecord")) == [b"packed"]


def test_every_damaged_byte_and_every_cut_is_noticed_and_names_file_record_and_offset() -> None:
    content = content_of([b"one", b"", b"three"])
    borders = {0, 19, 35}
    for place in range(len(content)):
        damaged = content[:place] + bytes((content[place] ^ 0x10,)) + content[place + 1 :]
        with pytest.raises(DamagedFile, match=r"x is .*record \d, at byte \d+"):
            read(damaged)
        if place not in borders:
            with pytest.raises(DamagedFile, match=r"cut short: record \d, at byte \d+"):
                read(content[:place])


def test_a_packed_file_that_was_cut_is_noticed() -> None:
    content = gzip.compress(content_of([b"one", b"two"]))
    with pytest.raises(DamagedFile, match=r"x cannot be unpacked|x is cut short"):
        read(content[:-9])
