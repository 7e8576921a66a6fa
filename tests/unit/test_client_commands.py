"""Commands that cannot be executed are refused before anything starts, where that can be known."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from trainmaster.client.spec.commands import check_commands
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.reading import job_from


def check(folder: Path, command: Any, **keys: Any) -> None:
    check_commands(job_from({"name": "t", "roles": {"worker": {"command": command, **keys}}}), folder, os.environ)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plain").write_text("no program\n")
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-program", "-x"], "the command no-such-program was not found"),
        (["./not-there"], "the command ./not-there was not found"),
        (["./plain"], "the command ./plain may not be executed"),
        (["/"], "the command / is a directory"),
        (["echo", "x" * 200_000], "a word of the command has 200000 bytes"),
        ("echo " + "x" * 200_000, "a word of the command has 200005 bytes"),
        (["seq 3 | tail -1"], r"write sh -c 'seq 3 \| tail -1'"),
    ],
)
def test_a_command_that_cannot_run_is_refused_at_submit(folder: Path, command: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refusal:
        check(folder, command)
    assert refusal.value.anchor == "no-command"


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (["sh", "-c", "true"], {}), (["./tool"], {}), (["{folder}/tool"], {}), ("no-such-program -x", {}),
        (["tool"], {"env": {"PATH": "{folder}"}}), (["./not-there"], {"workdir": "copy"}), (["./not-there"], {"prepare": "make"}),
    ],
)  # fmt: skip
def test_what_may_come_to_be_is_not_refused(folder: Path, command: Any, keys: dict[str, Any]) -> None:
    command = [word.format(folder=folder) for word in command] if isinstance(command, list) else command
    keys = {**keys, "env": {"PATH": str(folder)}} if "env" in keys else keys
    check(folder, command, **keys)


def test_where_there_is_python3_alone_that_is_said(folder: Path) -> None:
    (folder / "python3").symlink_to(sys.executable)
    with pytest.raises(BadInput, match="there is python3: write that"):
        check(folder, ["python", "x.py"], env={"PATH": str(folder)})
    (folder / "python3").unlink()
    with pytest.raises(BadInput, match="it is looked for in PATH"):
        check(folder, ["python", "x.py"], env={"PATH": str(folder)})
