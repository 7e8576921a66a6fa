"""Records out of files of every format, into a program, and out of it again."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.input.splits import File, Piece, split_records
from trainmaster.core.spec.job import Input
from trainmaster.data.formats import formats, rows
from trainmaster.data.formats.formats import cuttable, records, shard_files, source_of
from trainmaster.data.sources import list_input
from trainmaster.data.store.transfer import Stopped
from trainmaster.data.streams import Fed, Parts, feed, shuffled


def put(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def all_of(path: str, name: str = "auto", start: int = 0, end: int | None = None) -> list[bytes]:
    size = source_of(path, 0).store.look(path.rpartition("/")[2]).size  # type: ignore[union-attr]
    return list(records(Piece(path, start, end), size, name))


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("lines", b"a\r\n\nb", [b"a", b"", b"b"]),
        ("jsonl", b'{"a": 1}\n\n  \n{"b": 2}\n', [b'{"a": 1}', b'{"b": 2}']),
        ("csv", b'x,y\n1,"a\nb"\n2,c\n', [b'1,"a\nb"', b"2,c"]),
        ("bytes", b"any\0thing", [b"any\0thing"]),
    ],
)
@pytest.mark.parametrize(
    ("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_formats_packed_or_not(
    tmp_path: Path, name: str, data: bytes, expected: list[bytes], ending: str, pack: object
) -> None:
    path = put(tmp_path / f"x{ending}", pack(data))  # type: ignore[operator]
    assert all_of(path, name) == expected
    assert cuttable(name, path) == (name in ("lines", "jsonl") and not ending)
    fsspec.filesystem("memory").pipe_file(f"/formats-{tmp_path.name}/x{ending}", pack(data))  # type: ignore[operator]
    assert all_of(f"memory://formats-{tmp_path.name}/x{ending}", name) == expected


def test_auto_goes_by_the_ending_and_drops_no_header(tmp_path: Path) -> None:
    assert all_of(put(tmp_path / "x.csv", b"x,y\n1,2\n")) == [b"x,y", b"1,2"]
    with pytest.raises(BadInput, match="avro is not a format"):
        cuttable("avro", "x")


@pytest.mark.parametrize("name", ["x.gz", "x.bz2", "x.xz", "x.parquet"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    path = put(tmp_path / name, b"this is nothing packed")
    with pytest.raises(StorageFailed, match="cannot be read") as caught:
        all_of(path)
    assert path in str(caught.value)


def test_a_packed_file_that_was_cut_is_named(tmp_path: Path) -> None:
    path = put(tmp_path / "x.gz", gzip.compress(os.urandom(10_000))[:5000])
    with pytest.raises(StorageFailed, match="cannot be read"):
        all_of(path)


# -- Parquet --


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Ten rows in row groups of four."""
    rows = {"n": list(range(10)), "raw": [b"\x00\xff"] * 10, "at": [datetime(2026, 1, 2)] * 10}  # noqa: DTZ001
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "x.parquet", row_group_size=4)
    return f"{tmp_path}/x.parquet"


def test_rows_are_json_objects(table: str) -> None:
    found = [json.loads(row) for row in all_of(table)]
    assert found[3] == {"n": 3, "raw": "AP8=", "at": "2026-01-02 00:00:00"}
    assert [row["n"] for row in found] == list(range(10))
    assert [json.loads(row)["n"] for row in all_of(table, "auto", 1, 3)] == list(range(4, 10))
    assert not cuttable("auto", table)


def test_rows_by_the_programs_own_python(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_has_pyarrow", lambda: False)
    size = os.path.getsize(table)
    with pytest.raises(BadInput, match="without pyarrow"):
        list(records(Piece(table), size))
    assert [json.loads(row)["n"] for row in records(Piece(table, 1, 2), size, python=sys.executable)] == [4, 5, 6, 7]
    begun = records(Piece(table), size, python=sys.executable)
    assert json.loads(next(begun))["n"] == 0
    begun.close()  # type: ignore[attr-defined]
    bare = Path(table).parent / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(BadInput, match="without pyarrow"):
        list(records(Piece(table), size, python=str(bare)))
    Path(table).write_bytes(b"no table")
    with pytest.raises(StorageFailed, match="cannot be read"):
        list(records(Piece(table), 8, python=sys.executable))


def test_rows_is_a_script_of_its_own(table: str) -> None:
    command = [sys.executable, rows.__file__, table, "1", "2"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [json.loads(row)["n"] for row in told.splitlines()] == [4, 5, 6, 7]


def test_shards_know_the_row_groups(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(Path(table).parent / "x.csv", b"1\n")
    listing = list_input(str(Path(table).parent))
    found = shard_files(Input("train", listing.prefix, as_="shards"), listing)
    assert [(file.path.rpartition("/")[2], file.groups) for file in found] == [("x.csv", None), ("x.parquet", 3)]
    monkeypatch.setattr(formats, "_has_pyarrow", lambda: False)
    assert [file.groups for file in shard_files(Input("train", listing.prefix, as_="shards"), listing)] == [None, None]


# -- into a program --


def fed(pieces: Sequence[Piece], program: str = "", **how: object) -> tuple[Fed, bytes]:
    """What `feed` says, and what a program reading its standard input sees."""
    code = program or "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            told = feed(pieces, os.path.getsize, process.stdin.fileno(), **how)  # type: ignore[arg-type]
            process.stdin.close()
            return told, process.stdout.read()
        except BaseException:
            process.kill()
            raise


@pytest.fixture
def numbers(tmp_path: Path) -> list[File]:
    """500 numbered records in three files."""
    (tmp_path / "in").mkdir()
    for i, (first, end) in enumerate([(0, 250), (250, 260), (260, 500)]):
        put(tmp_path / f"in/{i}", b"".join(b"%d\n" % n for n in range(first, end)))
    return list(list_input(f"{tmp_path}/in").files)


def test_tasks_together_read_every_record_once(numbers: list[File]) -> None:
    parts = split_records(numbers, 4, lambda file: cuttable("auto", file.path))
    seen = [fed(part)[1].split() for part in parts]
    assert sorted(int(n) for part in seen for n in part) == list(range(500))
    assert all(100 < len(part) < 150 for part in seen)


def test_epochs_repeat(numbers: list[File]) -> None:
    told: list[tuple[int, int]] = []
    result, seen = fed([Piece(file.path) for file in numbers], epochs=3, tell=lambda *figures: told.append(figures))
    assert result == Fed(1500, len(seen))
    assert [int(n) for n in seen.split()] == [*range(500)] * 3
    assert told[-1] == (1500, len(seen))


def test_a_shuffle_follows_from_seed_and_epoch(numbers: list[File]) -> None:
    pieces = [Piece(file.path) for file in numbers]
    orders = [fed(pieces, shuffle=True, seed=seed, epochs=2, buffer=50)[1] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    first, second = (orders[0].split()[:500], orders[0].split()[500:])
    assert first != second
    assert sorted(map(int, first)) == sorted(map(int, second)) == list(range(500))
    assert fed(pieces[::-1], shuffle=True, seed=1, epochs=2, buffer=50)[1] == orders[0]


@given(st.lists(st.integers()), st.integers(1, 20), st.randoms(use_true_random=False))
def test_a_shuffle_gives_each_record_once(found: list[int], buffer: int, source: object) -> None:
    drawn = list(shuffled(found, source.random, buffer))  # type: ignore[attr-defined]
    assert Counter(drawn) == Counter(found)


def test_a_program_may_stop_reading(tmp_path: Path) -> None:
    path = put(tmp_path / "x", b"0123456789\n" * 200_000)
    result, seen = fed([Piece(path)], "import sys; print(sys.stdin.readline(), end=''); sys.stdin.close()")
    assert result.early
    assert seen == b"0123456789\n"


def test_a_program_that_does_not_read_does_not_keep_us(tmp_path: Path) -> None:
    path = put(tmp_path / "x", b"0123456789\n" * 200_000)
    stop = threading.Event()
    timer = threading.Timer(0.2, stop.set)
    timer.start()
    try:
        with pytest.raises(Stopped):
            fed([Piece(path)], "import threading; threading.Event().wait()", stop=stop)
    finally:
        timer.join()


# -- out of a program --


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 50), st.lists(st.integers(0, 900), max_size=10))
def test_parts_are_cut_at_records(lengths: list[int], size: int, cuts: list[int]) -> None:
    import tempfile

    data = b"".join(b"x" * length + b"\n" for length in lengths)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    with tempfile.TemporaryDirectory(prefix="parts-") as folder:
        parts = Parts(folder, size)
        for start, end in pairwise(bounds):
            parts.write(data[start:end])
        names = parts.close()
        contents = [Path(folder, name).read_bytes() for name in names]
    assert b"".join(contents) == data
    assert all(content.endswith(b"\n") for content in contents if content)
    assert all(len(content) < size + 31 for content in contents)
    assert all(len(content) >= size for content in contents[:-1])


def test_parts_begin_anew_with_the_attempt(tmp_path: Path) -> None:
    for text in (b"one\ntwo\n", b"three"):
        parts = Parts(f"{tmp_path}/out", size=4)
        parts.write(text)
        parts.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {"part-00000": b"three"}
    assert Parts(f"{tmp_path}/none").close() == ["part-00000"]
