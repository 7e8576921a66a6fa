"""Each model of examples/zoo learns: its own test passes, and its page states the figure of the test."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ZOO = Path(__file__).parents[2] / "examples" / "zoo"
LIMIT = 1800.0  # s, which only a failure reaches
BRIEF = {"iris"}  # in every run
LONG = {"images"}


def table(name: str) -> dict[str, tuple[str, int, int, float]]:
    """The models of a directory: data, epochs, batch and figure, as its test has them."""
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse((ZOO / name / f"test_{name}.py").read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    return {model: (values["DATA"], *row[:2], row[3]) for model, row in values["MODELS"].items()}


MODELS = {
    name: table(name) for name in sorted(path.parent.name for path in ZOO.glob("*/test_*.py")) if name != "points"
}


def marks(name: str) -> list[pytest.MarkDecorator]:
    if name in BRIEF:
        return []
    return [pytest.mark.soak] if name in LONG else [pytest.mark.full]


@pytest.mark.parametrize(
    "model", [pytest.param(model, marks=marks(name)) for name, models in MODELS.items() for model in models]
)
def test_model_reaches_its_figure(model: str) -> None:
    name = model.partition(".")[0]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # tm, and the Python of the job's programs
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-c", os.devnull, "--rootdir", ZOO, f"{name}/test_{name}.py",
         "-k", model],
        cwd=ZOO, env={**os.environ, "PYTHONPATH": str(ZOO), "PATH": path}, capture_output=True, text=True, check=False, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    assert "1 passed" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("name", ["points", "iris", "heart", "clicks"])
def test_the_commands_that_zoo_init_prints_work_word_for_word(name: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False, timeout=LIMIT,
        )  # fmt: skip

    begun = run(f"tm zoo init zoo --model {name}")
    done = run(" && ".join(begun.stderr.splitlines()[1:]))
    assert done.returncode == 0, f"{begun.stderr}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    assert "Evaluation metrics[step=" in done.stdout
    assert "not stored" not in done.stdout + done.stderr, "Keras's export has a directory of nothing"
    assert "_SUCCESS" in os.listdir(tmp_path / "zoo/model")


def test_page_states_the_figures() -> None:
    stated = {}
    for line in (ZOO / "README.md").read_text().splitlines():
        names = re.findall(r"`([\w.]+\.\w+)`", line)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if names and len(cells) == 4:
            epochs, batch = map(int, cells[2].split(","))
            [least] = re.findall(r"\d\.\d+", cells[3])
            stated |= {name: (cells[1], epochs, batch, float(least)) for name in names}
    assert stated == {model: row for models in MODELS.values() for model, row in models.items()}
