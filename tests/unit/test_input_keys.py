"""A key of an input acts, or is refused: one table says which keys act on which `as`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from trainmaster.core.spec.job import INPUT_KEYS, Input, file_name

TM = [sys.executable, "-m", "trainmaster.cli"]
SET = {
    "local": "elsewhere", "format": "lines", "options": "{cache: 1MiB}", "epochs": "2", "shuffle": "true", "seed": "3", "poison": "1",
    "shard_records": "7", "split": "whole", "key": "id",
}  # fmt: skip
IDLE = [(way, key) for way, keys in INPUT_KEYS.items() for key in SET if key not in keys]


def tm(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TM, *arguments], capture_output=True, text=True, cwd=cwd, timeout=120, check=False, stdin=subprocess.DEVNULL
    )


def test_the_table_has_every_way_and_every_key() -> None:
    ways = next(field for field in attrs.fields(Input) if field.name == "as_").metadata["shape"].split(" | ")
    assert list(INPUT_KEYS) == ways
    keys = {file_name(field.name) for field in attrs.fields(Input)} - {"name", "url", "as", "to"}
    assert {key for own in INPUT_KEYS.values() for key in own} == keys == {*SET}


@pytest.mark.parametrize("way", INPUT_KEYS)
def test_a_key_that_does_nothing_is_refused_with_its_line(tmp_path: Path, home, way: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("1\n")
    for key in [key for other, key in IDLE if other == way and key not in ("options", "key")]:
        text = f"roles: {{worker: {{command: 'true'}}}}\ninputs:\n  d:\n    url: data\n    as: {way}\n    {key}: {SET[key]}\n"
        (tmp_path / "job.yaml").write_text(text)
        done = tm("run", "job.yaml", "--dry-run", cwd=tmp_path)
        assert done.returncode == 2
        assert f"{key} does nothing for an input as: {way}" in done.stderr
        assert "job.yaml line 6" in done.stderr
        assert "it acts on an input as: " in done.stderr
    assert list((home.state / "jobs").glob("*") if (home.state / "jobs").exists() else ()) == []


@pytest.mark.parametrize("way", INPUT_KEYS)
def test_keys_that_act_are_taken_and_a_dry_run_shows_no_other(tmp_path: Path, home, way: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("1\n")
    acting = [key for key in INPUT_KEYS[way] if key not in ("options", "key")]
    words = [word for key in acting for word in ("--set", f"inputs.d.{key}={SET[key]}")]
    role = ["--set", "roles.worker.workdir=copy", "--set", "roles.worker.restart.scope=never"]
    done = tm("run", "--dry-run", "--all", "--input", f"d:{way}=data", *words, *role, "--", "true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.partition("\ninputs:\n  d:\n")[2].partition("\noutputs:")[0]
    keys = {line.strip().partition(":")[0] for line in shown.splitlines() if line.startswith("    ") and line[4] != " "}
    assert keys <= {"url", "as", "to", *INPUT_KEYS[way]}
    assert keys >= {*acting}


def test_a_stream_of_bytes_deals_whole_files_in_another_order(tmp_path: Path, home) -> None:
    """Files of more than one piece that is read at once stay whole."""
    (tmp_path / "data").mkdir()
    size = 20_000_000
    for letter in "abc":
        (tmp_path / "data" / letter).write_text(letter * size)
    words = ["--input", "d:stream=data", "--set", "inputs.d.format=bytes", "--set", "inputs.d.shuffle=true"]
    count = "import json, sys; from itertools import groupby; print(json.dumps([[l, len(list(g))] for l, g in groupby(sys.stdin.read())]))"
    done = tm("run", *words, "--", sys.executable, "-c", count, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)) == [["a", size], ["b", size], ["c", size]]


def test_shards_of_bytes_are_refused(tmp_path: Path, home) -> None:
    (tmp_path / "data").write_text("1\n")
    done = tm("run", "--input", "d:shards=data", "--set", "inputs.d.format=bytes", "--", "true", cwd=tmp_path)
    assert (done.returncode, "format: bytes" in done.stderr) == (2, True)
