"""A feed read by PyTorch, TensorFlow and Keras, each a program of its own, from a real ring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from trainmaster.runtime.feed.feeder import Feeder
from trainmaster.runtime.feed.rows import batches

PROGRAMS = Path(__file__).parents[1] / "programs"
ROWS = 500
SIZE = 3000  # bytes of a batch, about; the ring has room for some ten of them
LIMIT = 400.0  # s of a program: some load TensorFlow


class Owner:
    """The owner of a ring, in a process of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        command = [sys.executable, PROGRAMS / "feed_parties.py", "own", path, "200000"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline()) == "ready"

    def command(self, word: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def owner(home: Any) -> Iterator[Owner]:
    owner = Owner(home.runtime / "data.feed")
    try:
        yield owner
    finally:
        owner.process.kill()
        owner.process.communicate()
        owner.path.unlink(missing_ok=True)


def row(number: int) -> dict[str, Any]:
    return {"x": [float(number)] * 3, "label": number, "text": f"é{number}", "tags": list(range(number % 4))}


def run(owner: Owner, framework: str) -> Any:
    """Feed a program, and return what it printed; all must count as read then."""
    command = [sys.executable, PROGRAMS / "feed_reader.py", framework, owner.path]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    try:
        with Feeder(str(owner.path)) as feeder:
            for number, columns in enumerate(batches(map(row, range(ROWS)), size=SIZE, ragged=["tags"])):
                feeder.put((0, 0, number), columns)
            feeder.flush()
        owner.command("end")
        out, errors = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-4000:]
    until(lambda: (figures := owner.command("figures"))["read"] == figures["fed"])
    return json.loads(out), errors


@pytest.mark.full
@pytest.mark.parametrize("framework", ["torch", "torch_workers", "tensorflow"])
def test_a_framework_reads_all_rows_in_batches_of_its_size(framework: str, owner: Owner) -> None:
    (sizes, columns), errors = run(owner, framework)
    assert sizes == [7] * (ROWS // 7) + [ROWS % 7]
    rows = [row(number) for number in range(ROWS)]
    assert columns == [[row[name] for row in rows] for name in ("x", "label", "text", "tags")]
    assert ("worker 1 of the DataLoader has nothing to read" in errors) == (framework == "torch_workers")


@pytest.mark.full
def test_keras_fits_by_the_feed(owner: Owner) -> None:
    (steps, is_better), _ = run(owner, "keras")
    assert steps == -(-ROWS // 7)
    assert is_better
