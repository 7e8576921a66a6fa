"""Small data faults: nothing of what is read, written or saved changes in silence."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from trainmaster import runtime
from trainmaster.data import cached
from trainmaster.data.cached import provide
from trainmaster.runtime.feed.results import pack
from trainmaster.runtime.formats import recordio
from trainmaster.runtime.reading import Reader, cut_alone
from trainmaster.zoo.data.records import Form
from trainmaster.zoo.errors import BadModel

TM = [sys.executable, "-m", "trainmaster.cli"]
MARK = b"\xef\xbb\xbf"
SHARDS = "from trainmaster import runtime; [print(record) for record in runtime.shards('data')]"


def tm(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TM, *arguments], capture_output=True, text=True, cwd=cwd, timeout=120, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("kind", ["stream", "shards"])
def test_a_byte_order_mark_is_left_out_of_packed_and_plain_text_alike(tmp_path: Path, home, kind: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_bytes(MARK + b"one\n")
    (tmp_path / "data" / "b.txt.gz").write_bytes(gzip.compress(MARK + b"one\n"))
    command = ["cat"] if kind == "stream" else [sys.executable, "-c", SHARDS]
    done = tm("run", "--input", f"data:{kind}=data", "--", *command, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "one\none\n"), done.stderr


def test_a_stream_of_rows_is_json_whatever_the_floats(tmp_path: Path, home) -> None:
    column = [1.5, math.nan, math.inf, -math.inf, None]
    pyarrow.parquet.write_table(pyarrow.table({"x": column, "y": [[x] for x in column]}), tmp_path / "data.parquet")
    done = tm("run", "--input", "data:stream=data.parquet", "--", "cat", cwd=tmp_path)

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    rows = [json.loads(line, parse_constant=refuse) for line in done.stdout.splitlines()]
    expected = [1.5, "NaN", "Infinity", "-Infinity", None]
    assert rows == [{"x": x, "y": [x]} for x in expected], done.stderr


def test_numbers_of_records_have_a_bound(tmp_path: Path, home) -> None:
    done = tm("run", "--input", "data:shards=records://1000000000/1", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "makes 1,000,000,000 shards, more than 1,048,576: a shard needs 954 records or more" in done.stderr
    assert "inputs.data.url" in done.stderr
    with pytest.raises(ValueError, match="more than 1,048,576"):
        cut_alone("records://1000000000/1")
    assert (
        tm("run", "--dry-run", "--input", "data:shards=records://1000000000/954", "--", "true", cwd=tmp_path).returncode
        == 0
    )


def test_a_masked_array_is_refused_where_its_mask_would_be_lost(tmp_path: Path) -> None:
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    with pytest.raises(TypeError, match=r"state\['a'\] cannot be saved: it is a masked array; save its `data`"):
        runtime.checkpoint.save(1, {"a": masked}, at=str(tmp_path / "ckpt"))
    for result in (masked, masked[1]):
        with pytest.raises(TypeError, match="a result is a masked array"):
            pack([result])


@pytest.mark.parametrize("is_there", [False, True])
def test_a_recordio_file_is_there_whole_or_not_at_all(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "data.recordio"
    if is_there:
        with recordio.Writer(path) as writer:
            writer.write(b"old")
    before = path.read_bytes() if is_there else None

    def write_and_fail() -> None:
        with recordio.Writer(path, chunk=1) as writer:
            for _ in range(3):
                writer.write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert [entry.name for entry in tmp_path.iterdir()] == (["data.recordio"] if is_there else [])
    assert not is_there or path.read_bytes() == before
    with recordio.Writer(path) as writer:
        writer.write(b"new")
    ((_, kind, start, end),) = cut_alone(str(path))
    assert list(Reader(None, "").records(str(path), kind, start, end)) == [b"new"]


def test_a_field_of_csv_may_be_long_and_what_is_no_csv_is_named() -> None:
    class Shard:
        path, kind, start = "data.csv", "csv", 0

        def __init__(self, *lines: str) -> None:
            self.records = lambda: iter(lines)

    form = Form({})
    form._headers["data.csv"] = ["a", "b"]
    long = "x" * 200_000
    assert list(form.records(Shard(f"1,{long}"))) == [["1", long]]
    with pytest.raises(BadModel, match="a record cannot be read: no CSV") as caught:
        list(form.records(Shard("1,2", "1,2\r3")))
    assert "data.csv, record 2" in str(caught.value)


def test_a_cached_file_that_was_damaged_stays_until_it_is_there_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job's program may use it just then: it was removed before the file was fetched again."""
    source, cache = tmp_path / "tool", str(tmp_path / "cache")
    source.write_text("whole")
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    provide([str(source)], cache, str(tmp_path / "one"), "cache")
    used = tmp_path / "one" / "tool"
    used.resolve().write_text("half a")
    fetch = cached._fetch

    def fetched(*arguments: Any) -> None:
        assert used.read_text() == "half a"
        fetch(*arguments)

    monkeypatch.setattr(cached, "_fetch", fetched)
    provide([str(source)], cache, str(tmp_path / "other"), "cache")
    assert used.read_text() == (tmp_path / "other" / "tool").read_text() == "whole"
    assert {path.name for path in used.resolve().parent.iterdir()} == {"tool", ".tool.sizes.json"}


def test_files_of_a_cached_folder_may_be_executed(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"/lossless-{tmp_path.name}/tools/sub/run.sh", b"#!/bin/sh\n")
    names = provide([f"memory://lossless-{tmp_path.name}/tools"], str(tmp_path / "cache"), str(tmp_path), "cache")
    assert names == ["tools"]
    assert os.access(tmp_path / "tools" / "sub" / "run.sh", os.X_OK)
