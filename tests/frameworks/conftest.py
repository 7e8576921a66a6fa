"""Programs started as a formation's tasks: with the variables that a framework gives them, by nobody but the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from placing import EXAMPLES, LIMIT, Place, Program, Start

from trainmaster import frameworks
from trainmaster.core.machine.formation import Formation


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits, as the examples' own program writes them."""
    place = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, EXAMPLES / "digits" / "data.py", place], check=True, timeout=LIMIT)
    return place


@pytest.fixture
def parts(digits: Path, tmp_path: Path) -> list[Path]:
    """The training files, dealt out to two tasks; the second has far fewer rows."""
    places = [tmp_path / "part-0", tmp_path / "part-1"]
    for place in places:
        place.mkdir()
    for number, path in enumerate(sorted((digits / "train").glob("*.csv"))):
        (places[0 if number > 1 else 1] / path.name).symlink_to(path)
    return places


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a program in a directory; whatever is left of it is killed in the end."""
    with ExitStack() as stack:
        count = iter(range(1000))

        def started(command: Sequence[str | Path], cwd: Path, env: Mapping[str, str] | None = None) -> Program:
            cwd.mkdir(parents=True, exist_ok=True)
            log = tmp_path / f"program-{next(count)}.log"
            with log.open("wb") as out:
                process = subprocess.Popen(
                    command, cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                )  # fmt: skip
            program = Program(process, log)
            stack.callback(program.stop)
            return program

        yield started


@pytest.fixture
def place(start: Start, tmp_path: Path) -> Place:
    """Start every copy of a task as the framework says; each task in its own directory."""

    def placed(
        framework: str,
        formation: Formation,
        task: str,
        command: Sequence[str | Path],
        env: Mapping[str, str],
        cwd: Path,
    ) -> list[Program]:
        told = frameworks.placement(framework, formation, task)
        files = tmp_path / f"files-{formation.generation}-{task.replace(':', '-')}"
        files.mkdir(exist_ok=True)
        for name, content in told.files.items():
            (files / name).write_bytes(content)
        paths = {variable: str(files / name) for variable, name in told.paths.items()}
        return [start(command, cwd, {**told.defaults, **told.env, **copy, **paths, **env}) for copy in told.copies]

    return placed
