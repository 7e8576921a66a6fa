"""The JSON Schema of job files accepts what the reader accepts, and refuses what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from click.testing import CliRunner

from trainmaster import frameworks
from trainmaster.cli.tm import tm
from trainmaster.client.spec import schema
from trainmaster.client.spec.flags import FLAGS
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import keys
from trainmaster.core.spec.reading import job_from
from trainmaster.core.spec.shapes import SHAPES

ROOT = Path(__file__).parents[2]
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2.5, 0.5, 10**12, "", "none", "x", "worker:0", "3", "-3", "1.5", "3s", "1h30m", "2 Minutes", "2GiB", "2g",
    "100", "10ms", "5ms", "512KiB", "SIGTERM", "USR1", "15", "per-gpu", "cores", "machine", "a/b", "../x", "a/../b", "/abs", "s3://x/y",
    "1.0", "true", "on", "off", "Yes", "TRUE", "None", [], ["a"], [1], [True], [[]], ["a=b"], {}, {"a": 1}, {"a": "running"},
    {"a": None}, {"a": "b"}, {"a": True}, {"a": {}}, {"a b": 0}, "a" * 64, "-x",
]  # fmt: skip
# What only the reader looks at: it refuses these too.
LOOSER = {
    "interval": ["5ms"], "interval or none": ["5ms"], "positive size": ["512KiB"], "positive size or none": ["512KiB", ""],
    "labels": [{"a": True}],  # the reader of YAML makes it a text
    "part or none": ["3", "1.5", "100", "15", ""], "factor or none": [""],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_value_is_taken_where_the_reader_takes_it(shape: str) -> None:
    validator = jsonschema_rs.validator_for(schema._value(shape, None, {}))
    for value in VALUES:
        try:
            SHAPES[shape][0](value)
            is_read = True
        except ValueError:
            is_read = False
        if shape.startswith("signal"):  # its name alone is not looked at
            assert validator.is_valid(value) or not is_read, value
        elif value not in LOOSER.get(shape, []):
            assert validator.is_valid(value) == is_read, value


def job_files() -> list[Path]:
    files = sorted((ROOT / "examples").rglob("*.yaml"))
    return [file for file in files if "roles" in (yaml.safe_load(file.read_text()) or {})]


@pytest.mark.parametrize("file", job_files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_the_examples_fit(file: Path) -> None:
    jsonschema_rs.validator_for(schema.schema()).validate(yaml.safe_load(file.read_text()))


WORKER = {"command": "true"}
FAULTS: list[dict[str, Any]] = [
    {}, {"roles": {"worker": {}}}, {"rolls": {"worker": WORKER}}, {"roles": {"worker": {**WORKER, "replica": 2}}},
    {"roles": {"worker": {**WORKER, "resources": {"memory": 2}}}}, {"roles": {"worker": WORKER}, "inputs": {"data": {"as": "shards"}}},
    {"roles": {"worker": {**WORKER, "restart": {"scope": "some"}}}}, {"roles": {"worker": WORKER}, "secrets": [[1]]},
    {"roles": {"worker": {**WORKER, "after": [[]]}}}, {"roles": {"worker": {**WORKER, "ports": [{}]}}},
]  # fmt: skip


@pytest.mark.parametrize("data", FAULTS, ids=json.dumps)
def test_both_refuse_a_fault(data: dict[str, Any]) -> None:
    assert not jsonschema_rs.validator_for(schema.schema()).is_valid(data)
    with pytest.raises(BadInput):
        job_from(data)


def test_the_command_prints_a_schema() -> None:
    printed = json.loads(CliRunner().invoke(tm, ["schema"]).stdout)
    jsonschema_rs.meta.validate(printed)
    assert printed == schema.schema()


def test_the_annotated_file_has_every_key() -> None:
    """It reads, fits the schema, and leaves out only what excludes another of its keys."""
    data = yaml.safe_load((ROOT / "docs/whole-job.yaml").read_text())
    jsonschema_rs.validator_for(schema.schema()).validate(data)
    job_from(data)
    text = (ROOT / "docs/whole-job.yaml").read_text()
    missing = [key.path for key in keys() if not re.search(rf"\b{key.path.rpartition('.')[2]}:", text)]
    assert missing == []


def test_the_frameworks_of_ours_are_named() -> None:
    (doc,) = (key.doc for key in keys() if key.path == "framework")
    (flag,) = (flag.doc for flag in FLAGS if flag.dest == "framework")
    for name in frameworks.built_in():
        assert name in doc
        assert name in flag
