"""Job files in YAML: data, the line of each value, and YAML's traps."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.client.spec.jobfile import load, parse, value
from trainmaster.core.errors import BadInput, NotFound
from trainmaster.core.spec.reading import job_from

FILE = """\
name: digits
roles:
  worker:
    command: [python, train.py]
    resources:
      cores: 1
      memory: 12GiBs
"""


def told(content: str) -> str:
    with pytest.raises(BadInput) as error:
        job_from(*parse(content, "job.yaml"))
    return str(error.value)


def test_every_value_has_its_line() -> None:
    data, origins = parse(FILE, "job.yaml")
    assert data["roles"]["worker"] == {"command": ["python", "train.py"], "resources": {"cores": 1, "memory": "12GiBs"}}
    assert origins["roles", "worker", "resources", "memory"] == "job.yaml line 7"
    assert origins["roles", "worker", "command", "1"] == "job.yaml line 4"
    assert origins["roles", "worker"] == "job.yaml line 3"


def test_an_error_names_key_value_and_line() -> None:
    assert told(FILE) == (
        "roles.worker.resources.memory: GiBs is not a unit of size: use B, KB, MB, GB, TB (1000s) or KiB, MiB, GiB, TiB (1024s)\n"
        "  roles.worker.resources.memory: 12GiBs   (job.yaml line 7)"
    )


def test_an_unknown_key_is_reported_with_the_nearest() -> None:
    assert told("roles:\n  worker:\n    command: x\n    replica: 2\n") == (
        "there is no key 'replica' in roles.worker\n  roles.worker.replica: 2   (job.yaml line 4)\n  did you mean replicas?"
    )


def test_a_key_that_stands_twice_is_refused() -> None:
    assert told("name: a\nroles: {}\nname: b\n") == (
        "the key 'name' stands twice\n  name   (job.yaml line 3, and job.yaml line 1)\n  keep one of them"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name: [a\nroles: {}\n", "job.yaml is not YAML: "),
        ("a:\tb\n\t- c\n", "job.yaml is not YAML: "),
        ("--- {}\n--- {}\n", "job.yaml is not YAML: but found another document\n  job.yaml line 2"),
        ("name: !!python/object/apply:os.system [true]\n", "could not determine a constructor"),
        ("- a\n", "job.yaml does not hold a job: keys like name, framework and roles\n  job.yaml line 1"),
        ("text", "job.yaml does not hold a job"),
        ("? [a, b]\n: c\n", "a key must be text"),
        ("a: &a\n  b: *a\n", "job.yaml is not YAML"),
        ("name: \x00\n", "job.yaml is not YAML"),
        ("", "roles is missing: the kinds of processes"),
    ],
)
def test_what_is_no_job_file(content: str, message: str) -> None:
    assert message in told(content)


def test_aliases_of_aliases_are_not_followed_for_ever() -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10))
    assert "job.yaml has more than 100,000 values" in told(f"l0: &l0 [x]\n{levels}\n")


def test_merged_keys_may_be_overridden() -> None:
    data, origins = parse("a: &a {x: 1, y: {z: 1}}\nb:\n  <<: *a\n  y: 2\nc: *a\nd: {<<: *a}\n", "f")
    assert data == {
        "a": {"x": 1, "y": {"z": 1}},
        "b": {"x": 1, "y": 2},
        "c": {"x": 1, "y": {"z": 1}},
        "d": {"x": 1, "y": {"z": 1}},
    }
    assert (origins["b", "y"], ("b", "y", "z") in origins) == ("f line 4", False)


def test_numbers_and_words_are_not_changed_behind_the_users_back() -> None:
    content = (
        "name: 2026-11-21\nversion: 1.0\nannotations: {on: yes, ticket: 007}\nroles:\n  worker:\n    command: x\n    replicas: 08\n"
        "    env: {PYTHON: 3.10, MASK: 022, NO: no, DEBUG: True, TIME: 1:30, EMPTY: '', TAKEN: }\n"
        "    resources: {cores: 1.50, gpus: 0}\n"
    )
    job = job_from(*parse(content, "job.yaml"))
    worker = job.roles["worker"]
    assert worker.env == {
        "PYTHON": "3.10", "MASK": "022", "NO": "no", "DEBUG": "True", "TIME": "1:30", "EMPTY": "", "TAKEN": None,
    }  # fmt: skip
    assert job.annotations == {"on": "yes", "ticket": "007"}
    assert (job.name, worker.replicas.max, worker.resources.cores) == ("2026-11-21", 8, 1.5)
    assert value("3.10", ("roles", "worker", "env", "PYTHON")) == "3.10"
    assert [value("{min: 2, max: 8}"), value("4"), value("a: b: c"), value("")] == [
        {"min": 2, "max": 8},
        4,
        "a: b: c",
        None,
    ]


def test_a_file_is_found_or_named(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(FILE)
    assert load(tmp_path / "job.yaml")[1]["name",] == "job.yaml line 1"
    with pytest.raises(NotFound, match="there is no job file"):
        load(tmp_path / "other.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (5 * 1024 * 1024))
    with pytest.raises(BadInput, match="too many for a job file"):
        load(tmp_path / "large.yaml")
