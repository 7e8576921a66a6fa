"""Dividing files and records: partitions, balanced, and the same whatever order a storage lists in."""

from __future__ import annotations

import io
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.input.records import lines, quoted
from trainmaster.core.input.splits import (
    File,
    Listing,
    Piece,
    deal_splits,
    joined,
    parts,
    split_files,
    split_records,
    visible,
)
from trainmaster.runtime import reading
from trainmaster.runtime.patterns import fixed_prefix

listings = st.lists(st.integers(0, 2000), max_size=40).map(
    lambda sizes: [File(f"/d/{i:03}{'.gz' if size % 3 == 0 else ''}", size) for i, size in enumerate(sizes)]
)
counts = st.integers(1, 9)


@given(listings, counts)
def test_files_are_partitioned(files: list[File], n: int) -> None:
    dealt = split_files(files, n)
    assert len(dealt) == n
    assert sorted((file for part in dealt for file in part), key=lambda file: file.path) == files


@given(listings, counts)
def test_no_two_parts_differ_by_more_than_the_largest_file(files: list[File], n: int) -> None:
    loads = [sum(file.size for file in part) for part in split_files(files, n)]
    assert max(loads) - min(loads) <= max((file.size for file in files), default=0)


@given(listings, counts, st.integers())
def test_the_order_of_the_listing_does_not_matter(files: list[File], n: int, seed: int) -> None:
    shuffled = random.Random(seed).sample(files, len(files))
    assert split_files(shuffled, n) == split_files(files, n)
    assert split_records(shuffled, n, cuttable) == split_records(files, n, cuttable)
    assert parts(shuffled, n, "whole") == [files] * n


def test_several_listings_are_one_without_doubles_and_equal_names() -> None:
    one = Listing("/a/", (File("/a/x", 1), File("/a/deep/x.csv", 1)))
    two = Listing("/b/", (File("/b/x", 1), File("/a/x", 1), File("/b/deep/x.csv", 1), File("/b/2-x", 1)))
    listing = joined([one, two, two])
    assert {file.path: listing.relative(file) for file in listing.files} == {
        "/a/x": "x", "/a/deep/x.csv": "deep/x.csv", "/b/x": "2-x", "/b/deep/x.csv": "deep/2-x.csv", "/b/2-x": "2-2-x",
    }  # fmt: skip


def test_empty_files_are_spread() -> None:
    assert [len(part) for part in split_files([File(f"/{i}", 0) for i in range(8)], 4)] == [2, 2, 2, 2]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="split"):
        split_files([], 0)


@given(listings, counts)
def test_splits_are_dealt_in_blocks_or_in_turn(files: list[File], n: int) -> None:
    blocks, around = deal_splits(files, n), deal_splits(files, n, around=True)
    assert len(blocks) == len(around) == n
    assert [file for part in blocks for file in part] == files
    assert [file for row in range(len(files)) for part in around for file in part[row : row + 1]] == files
    if len(files) >= n:
        assert all(blocks), "no task is without any"


@given(st.integers(1, 200), counts, st.sampled_from([0, 100]))
def test_equal_splits_are_dealt_equally(count: int, n: int, size: int) -> None:
    dealt = [len(part) for part in deal_splits([File(str(i), size) for i in range(count)], n)]
    assert max(dealt) - min(dealt) <= 1


def cuttable(file: File) -> bool:
    return not file.path.endswith(".gz")


@given(listings, counts)
def test_every_byte_of_every_file_is_in_one_piece(files: list[File], n: int) -> None:
    dealt = split_records(files, n, cuttable)
    assert len(dealt) == n
    for file in files:
        mine = sorted(piece for part in dealt for piece in part if piece.path == file.path)
        if cuttable(file):
            ends = [(piece.start, file.size if piece.end is None else piece.end) for piece in mine]
            assert [end for _, end in ends[:-1]] == [start for start, _ in ends[1:]]
            assert not file.size or (ends[0][0], ends[-1][1]) == (0, file.size)
        else:
            assert mine == [Piece(file.path)]


@given(listings, counts)
def test_pieces_level_the_parts(files: list[File], n: int) -> None:
    sizes = {file.path: file.size for file in files}
    whole = split_files([file for file in files if not cuttable(file)], n)
    highest = max(sum(file.size for file in part) for part in whole)
    loads = [
        sum((sizes[piece.path] if piece.end is None else piece.end) - piece.start for piece in part)
        for part in split_records(files, n, cuttable)
    ]
    assert max(loads) <= max(highest, -(-sum(loads) // n))


@given(
    st.binary(max_size=200).map(lambda data: data.replace(b"\0", b"\n").replace(b"\1", b"\r\n")),
    st.lists(st.integers(0, 220), max_size=6),
    st.integers(1, 64),
)
def test_any_cut_gives_each_line_once(data: bytes, cuts: list[int], chunk: int) -> None:
    def read(offset: int, size: int) -> bytes:
        return data[offset : offset + size]

    bounds = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    found = [record for start, end in pairwise(bounds) for record in lines(read, start, end, chunk=chunk)]
    expected = list(lines(read))
    assert found == expected
    told = [line for _, line in expected]
    file = io.BytesIO(data)
    assert told == list(reading.lines(file, 0, len(data)))  # what a program reads shards by
    for start, end in pairwise(bounds):
        assert [line for _, line in lines(read, start, end)] == list(reading.lines(file, start, end))


def test_lines_lose_their_ends_and_the_byte_order_mark() -> None:
    data = b"\xef\xbb\xbfone\r\ntwo\n\nlast"
    assert list(lines(lambda at, size: data[at : at + size])) == [(0, b"one"), (8, b"two"), (12, b""), (13, b"last")]


def test_quoted_line_ends_are_data() -> None:
    rows = [(0, b'1,"a'), (5, b'b",2'), (10, b'3,"say ""x""",4'), (30, b'5,"open')]
    assert list(quoted(rows)) == [(0, b'1,"a\nb",2'), (10, b'3,"say ""x""",4'), (30, b'5,"open')]


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.csv", True), (".a", False), ("_SUCCESS", False), ("_temporary", False), ("_day=1", True), ("a_b", True)],
)
def test_hidden_names(name: str, data: bool) -> None:
    assert visible(name) is data


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("hdfs:///data/*/x.csv", "hdfs:///data/"),
        ("hdfs://[::1]:8020/data/*/x.csv", "hdfs://[::1]:8020/data/"),
        ("s3://bucket/a/part-?", "s3://bucket/a/"),
        ("s3://bucket/exp[1]/part-?", "s3://bucket/exp[1]/"),
        ("/data/[ab]/c", "/data/"),
        ("/data/exp[1]/c", "/data/exp[1]/"),
        ("/data/exp[1]/bs=[32,64]/a/c?", "/data/exp[1]/bs=[32,64]/a/"),
        ("/data/exp[1]/[ab]/exp[1]/c", "/data/exp[1]/"),
        ("/data/plain", "/data/"),
        ("x*", ""),
    ],
)
def test_the_prefix_ends_before_the_first_pattern_that_is_no_folder(url: str, prefix: str) -> None:
    folders = ("exp[1]", "bs=[32,64]")
    assert fixed_prefix(url, lambda place: place.endswith(folders)) == prefix
