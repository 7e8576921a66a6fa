"""Objects of Kubernetes as YAML: a string stays a string, whoever reads it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from trainmaster.kube.manifest import as_yaml


@pytest.mark.parametrize(
    "text", ["1e3", "0o14", "08", "1.e3", "-1e+3", "+1e3", "y", "N", "true", "12", "null", "~", "2026-11-21"]
)
def test_an_annotation_that_looks_like_something_else_is_quoted(text: str) -> None:
    [line] = [line for line in as_yaml([{"annotations": {"a": text}}]).splitlines() if " a: " in line]
    assert line.strip() in (f"a: '{text}'", f'a: "{text}"')


def test_objects_are_read_as_they_were() -> None:
    rows: list[dict[str, Any]] = [
        {"data": {"a": "1\n2\n", "b": "y\nx", "c": "plain text", "d": "it's", "e": ""}, "n": [1, True, None, 1.5]},
        {"kind": "Pod"},
    ]
    rows[1]["same"] = rows[0]["data"]  # without an alias, which people do not read
    text = as_yaml(rows)
    assert list(yaml.safe_load_all(text)) == rows
    assert "&" not in text
