"""RecordIO files: each record of any file in exactly one shard, in order; files of other libraries; files that are damaged."""

from __future__ import annotations

import base64
import gzip
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.input.shards import RECORDIO, File, Options, ShardTable, place_words
from trainmaster.core.input.splits import File as Listed
from trainmaster.core.input.splits import Listing
from trainmaster.core.spec.job import Input
from trainmaster.data.formats.formats import check_format, format_of, shard_files
from trainmaster.runtime import shards
from trainmaster.runtime.formats import DamagedFile, recordio, snappy
from trainmaster.runtime.formats.crc32c import crc32c_in_python, masked_crc32c
from trainmaster.runtime.formats.tfrecord_frames import frame
from trainmaster.runtime.reading import Reader, cut_alone

RECORDS = st.lists(st.binary(max_size=300), max_size=60)
COMPRESSORS = ("none", "gzip", "snappy")
LAYOUTS = ("go", "fluid", "python")


def written(path: Path, records: list[bytes], **options: Any) -> str:
    with recordio.Writer(str(path), **options) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def chunk(records: list[bytes], layout: str = "go", compressor: str = "none", count: int | None = None) -> bytes:
    """A chunk as one of the three libraries writes it."""
    body = b"".join(struct.pack("<I", len(record)) + record for record in records)
    count = len(records) if count is None else count
    if layout == "python":
        packed = {"none": bytes, "gzip": gzip.compress, "snappy": _snappy_block}[compressor](body)
        number, checksum = COMPRESSORS.index(compressor), crc32c_in_python()(packed)
        return struct.pack("<5I", recordio.MAGIC, count, checksum, {0: 1, 1: 3, 2: 2}[number], len(packed)) + packed
    packed = {"none": bytes, "gzip": gzip.compress, "snappy": snappy.pack_stream}[compressor](body)
    number, checksum = {"none": 0, "snappy": 1, "gzip": 2}[compressor], zlib.crc32(packed)
    numbers = (checksum, number, len(packed), count) if layout == "go" else (count, checksum, number, len(packed))
    return struct.pack("<5I", recordio.MAGIC, *numbers) + packed


def _snappy_block(body: bytes) -> bytes:
    return bytes(pyarrow.compress(body, codec="snappy", asbytes=True))


def offsets(content: bytes) -> list[int]:
    return list(recordio.chunk_offsets(lambda offset, size: content[offset : offset + size], len(content), "x"))


def read(content: bytes, start: int = 0, end: int | None = None) -> list[bytes]:
    return list(recordio.records(io.BytesIO(content), "x", start, len(content) if end is None else end))


def table(paths: list[str], size: int, **options: Any) -> ShardTable:
    """The shards of files, cut at about `size` bytes."""
    files = []
    for path in paths:
        content = Path(path).read_bytes()
        cuts: list[int] = []
        for offset in offsets(content):
            if not cuts or offset - cuts[-1] >= size:
                cuts.append(offset)
        files.append(File(path, len(content), None, RECORDIO, tuple(cuts)))
    return ShardTable.make(files, Options(**options), name="train")


# -- reading and writing --


@given(RECORDS, st.integers(1, 700), st.sampled_from(COMPRESSORS), st.integers(1, 3000), st.booleans())
def test_each_record_is_in_exactly_one_shard_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[bytes],
    limit: int,
    compressor: str,
    size: int,
    shuffle: bool,
) -> None:
    folder = tmp_path_factory.mktemp("recordio")
    paths = [written(folder / str(i), records[i::2], compressor=compressor, chunk=limit) for i in range(2)]
    cut = table(paths, size, epochs=2, shuffle=shuffle, seed=3)
    reader = Reader("utf-8", "strict")
    for epoch in range(2):
        leased = sorted(cut.shard(number)[1:] for number in range(epoch * cut.count, (epoch + 1) * cut.count))
        assert [record for place in leased for record in reader.records(*place)] == records[::2] + records[1::2]
    reader.close()
    assert ShardTable.from_listing(cut.listing()).listing() == cut.listing()
    assert list(shards("x", default=str(folder), format="recordio", epochs=2)) == (records[::2] + records[1::2]) * 2


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_layouts_and_compressors_are_read(layout: str, compressor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [[b"", b"one", b"x" * 200_000], [b"\n\0"], [b"last"] * 1000]
    content = b"".join(chunk(records, layout, compressor) for records in chunks)
    cuts = offsets(content)
    assert len(cuts) == 3
    assert [read(content, start, end) for start, end in zip(cuts, [*cuts[1:], len(content)], strict=True)] == chunks
    monkeypatch.setattr(snappy, "_arrow", lambda: None)
    assert read(content) == [record for records in chunks for record in records]


@pytest.mark.parametrize(
    "content",
    [
        (
            "BAMCAT1k+LoBAAAAbgAAAAQAAAD/BgAAc05hUHBZAQgAANnGnEMFAAAAAQkAAFX/I+VmaXJzdAEIAACmexE6AAAAAAEIAADkzki5GAEAAAAYAAAgsWh4"
            "mAIEYWL+AgD+AgD+AgD+AgBWAgABCAAAYz9/KAMAAAABBwAAozsGAgD/Cg=="
        ),
        "BAMCAQsvQLICAAAANAAAAAQAAAAfiwgAAAAAAAD/YmVgYEjLLCouYWBgYJBgZGBITBqF2CAzKID+cwECAAD//zYMcl0wAQAA",
    ],
    ids=["snappy", "gzip"],
)
def test_files_that_the_go_library_wrote_are_read(content: str) -> None:
    """The files were written by github.com/wangkuiyi/recordio, of which pyrecordio 0.0.6 is the Python side."""
    assert read(base64.b64decode(content)) == [b"first", b"", b"ab" * 140, b"\0\xff\n"]


def test_records_larger_than_a_chunk_have_one_of_their_own_and_chunks_are_as_large_as_was_asked(tmp_path: Path) -> None:
    path = written(tmp_path / "x", [b"a" * 10, b"b" * 100, b"c" * 10, b"d" * 10, b"e" * 10], chunk=20)
    content = Path(path).read_bytes()
    cuts = offsets(content)
    assert [len(read(content, start, end)) for start, end in zip(cuts, [*cuts[1:], len(content)], strict=True)] == [
        1,
        1,
        2,
        1,
    ]
    with pytest.raises(ValueError, match="one of none, snappy, gzip"):
        recordio.Writer(path, compressor="zip")


def test_an_empty_file_has_no_shard(tmp_path: Path) -> None:
    path = written(tmp_path / "x.recordio", [])
    assert Path(path).read_bytes() == b""
    assert table([path], 10).total == 0
    assert list(shards("x", default=path)) == []


@given(st.binary(max_size=3000), st.integers(1, 40))
def test_snappy_is_unpacked_without_a_library_as_with_one(part: bytes, times: int) -> None:
    content = part * times
    packed = _snappy_block(content)
    size, place = snappy._read_size(packed)
    assert snappy._unpack_elements(packed, place, size) == content == snappy.unpack_block(packed)
    assert snappy.unpack_stream(snappy.pack_stream(content)) == content


@given(st.binary(max_size=200))
def test_any_bytes_are_a_block_of_snappy_or_an_error(packed: bytes) -> None:
    for unpack in (lambda: snappy._unpack_elements(packed, 0, 10), lambda: snappy.unpack_stream(packed)):
        try:
            unpack()
        except ValueError:
            continue


# -- damaged files --


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_damaged_byte_and_every_cut_is_noticed_and_names_file_and_offset(layout: str, compressor: str) -> None:
    first, second = chunk([b"one", b"two"], layout, compressor), chunk([b"three", b""], layout, compressor)
    content = first + second
    assert read(content) == [b"one", b"two", b"three", b""]
    for place in range(len(content)):
        changed = content[:place] + bytes((content[place] ^ 0x10,)) + content[place + 1 :]
        with pytest.raises(DamagedFile, match=r"x.* at byte"):
            read(changed)
        if place not in (0, len(first)):
            with pytest.raises(DamagedFile, match="cut short: the chunk at byte"):
                read(content[:place])
            with pytest.raises(DamagedFile, match="cut short: the chunk at byte"):
                offsets(content[:place])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content + b"\0" * 20, "no chunk begins at byte 31"),
        (lambda content: content[:-1] + b"!", "the checksum of the chunk at byte 0 does not match"),
        (lambda content: content[:8] + b"\x07" + content[9:], "the chunk at byte 0 has the unknown compressor 7"),
        (lambda content: content[:-2], "the chunk at byte 0 lacks its last 2 bytes"),
        (lambda content: chunk([b"abc", b""], count=3), "record 2 of the chunk at byte 0 has no end"),
        (lambda content: chunk([b"abc", b""], count=1), "more than the 1 records"),
        (lambda content: b"x,y\n1,2\n" * 9, "not a RecordIO file, or is damaged: no chunk begins at byte 0"),
        (lambda content: _with_body(b"no gzip", 2), "the chunk at byte 0 cannot be unpacked"),
        (lambda content: _with_body(b"\xff\x06\0\0sNaPpY\x00\xff\0\0", 1), "cannot be unpacked: a frame of Snappy is cut short"),
        (lambda content: _with_body(b"\x02\x01\0\0?", 1), "cannot be unpacked: a frame of Snappy has the unknown type 2"),
    ],
)  # fmt: skip
def test_damage_is_named(damage: Callable[[bytes], bytes], words: str) -> None:
    with pytest.raises(DamagedFile, match=words):
        read(damage(chunk([b"abc", b""])))


def _with_body(body: bytes, compressor: int) -> bytes:
    return struct.pack("<5I", recordio.MAGIC, zlib.crc32(body), compressor, len(body), 1) + body


# -- as the input of a job --


def listing(*paths: str) -> Listing:
    return Listing("/", tuple(Listed(path, Path(path).stat().st_size) for path in paths))


def test_shards_are_cut_at_chunks_of_large_files_alone(tmp_path: Path) -> None:
    large = written(tmp_path / "large", [bytes(1000)] * 100, chunk=5000)
    small = written(tmp_path / "small.recordio", [b"a"] * 3, chunk=1)
    source = Input("train", str(tmp_path), as_="shards", format="recordio")
    cut = ShardTable.make(shard_files(source, listing(large, small)), name="train")
    places = [cut.shard(number) for number in range(cut.total)]
    assert [shard.path for shard in places] == [large] * 5 + [small]
    assert {shard.kind for shard in places} == {RECORDIO}
    assert [shard.end for shard in places[:4]] == [shard.start for shard in places[1:5]]
    assert place_words(places[1]._asdict()) == f"{large}, bytes 20,160 to 40,320"
    auto = shard_files(Input("train", str(tmp_path), as_="shards"), listing(large, small))
    assert [file.kind for file in auto] == [RECORDIO, RECORDIO]


def test_shards_lie_in_any_store(tmp_path: Path) -> None:
    path = written(tmp_path / "x.recordio", [bytes(100)] * 500, chunk=1000)
    url = f"memory://recordio-{tmp_path.name}/x.recordio"
    fsspec.filesystem("memory").pipe_file(f"/recordio-{tmp_path.name}/x.recordio", Path(path).read_bytes())
    files = Listing("", (Listed(url, Path(path).stat().st_size),))
    cut = ShardTable.make(shard_files(Input("train", url, as_="shards"), files), name="train")
    reader = Reader("utf-8", "strict")
    assert cut.total > 2
    assert sum(len(list(reader.records(*cut.shard(n)[1:]))) for n in range(cut.total)) == 500
    reader.close()


def test_a_damaged_file_is_named_when_it_is_listed(tmp_path: Path) -> None:
    path = written(tmp_path / "x.recordio", [bytes(1000)] * 100, chunk=5000)
    Path(path).write_bytes(Path(path).read_bytes()[:-7])
    with pytest.raises(StorageFailed, match="lacks its last 7 bytes") as caught:
        shard_files(Input("train", path, as_="shards"), listing(path))
    assert path in str(caught.value)


def test_a_stream_of_records_that_nothing_separates_is_refused() -> None:
    with pytest.raises(BadInput, match="say as: shards"):
        check_format(Input("train", "x", as_="stream", format="recordio"))
    with pytest.raises(BadInput, match="hold any bytes"):
        format_of("auto", "x.recordio")
    check_format(Input("train", "x", as_="shards", format="recordio"))
    with pytest.raises(BadInput, match="bytes, parquet, recordio, tfrecord"):
        check_format(Input("train", "x", as_="shards", format="recordoi"))


@pytest.mark.parametrize("name", ["data-00000", "data.bin", "data.00"])
def test_a_file_whose_ending_tells_nothing_is_looked_into_by_master_and_program_alike(
    tmp_path: Path, name: str
) -> None:
    contents = {"recordio": b"", "tfrecord": frame(b"one", masked_crc32c()), "lines": b"one\n"}
    for format_name, content in contents.items():
        place = tmp_path / format_name / name
        place.parent.mkdir()
        place.write_bytes(content)
        if format_name == "recordio":
            written(place, [b"one"])
        listing = Listing("", (Listed(str(place), place.stat().st_size),))
        (file,) = shard_files(Input("x", str(place)), listing)
        ((_, kind, _, _),) = cut_alone(str(place))
        assert (file.kind or "lines", kind) == (format_name, format_name)
        assert list(shards("x", default=str(place))) in ([b"one"], ["one"])


def test_one_file_of_a_folder_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [Path(written(tmp_path / f"data-{number}", [b"one"])) for number in range(5)]
    listing = Listing("", tuple(Listed(str(file), file.stat().st_size) for file in files))
    for file in files[1:]:
        file.unlink()
    assert {file.kind for file in shard_files(Input("x", str(tmp_path)), listing)} == {RECORDIO}
