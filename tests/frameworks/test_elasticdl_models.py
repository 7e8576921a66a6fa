"""Model files as ElasticDL's users wrote them, on RecordIO files without an ending, by its command line and with no PYTHONPATH."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainmaster.runtime.formats.recordio import Writer

TESTS = Path(__file__).parents[1]
ZOO = TESTS / "programs" / "zoo"
LIMIT = 900.0  # s, which only a failure reaches
ESTIMATOR = TESTS.parent / ".venv" / "estimator"  # TensorFlow 2.15, whose Keras is Keras 2

pytestmark = pytest.mark.needs("frameworks")


def written(folder: Path, rows: Sequence[str]) -> Path:
    """Write two files of RecordIO, named as ElasticDL's own scripts name them."""
    folder.mkdir()
    for number in range(2):
        with Writer(folder / f"data-{number:05}") as writer:
            for row in rows[number::2]:
                writer.write(row.encode())
    return folder


def tm(folder: Path, *words: object, python: Path = Path(sys.executable).parent) -> str:
    """Run tm in a folder, where programs find the Python of a folder first. Return what it prints, after success."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ["PATH"] = f"{python}:{Path(sys.executable).parent}:{environ['PATH']}"
    command = [str(Path(sys.executable).parent / "tm"), *map(str, words)]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=LIMIT
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-5000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def accuracy(text: str) -> float:
    return float(re.findall(r"Evaluation metrics\[step=\d+\]: .*?'accuracy': ([\d.]+)", text)[-1])


def test_an_elasticdl_model_trains_evaluates_and_predicts(tmp_path: Path) -> None:
    """The files' kind is found out alike for training, validation and prediction; the model imports ElasticDL's names."""
    chance = random.Random(7)
    rows = [f"{(plant := chance.randrange(60))} {chance.randrange(60)} 5 {int(plant >= 30)}" for _ in range(800)]
    data = written(tmp_path / "data", rows)
    model = ("--engine", "local", "--model_zoo", ZOO, "--model_def=orchard.pots.custom_model", "--minibatch_size=32")
    job = ("--distribution_strategy=Local", "--job_name=pots", "--log_level=info", "--num_epochs=6", "--output=model")
    started = tm(tmp_path, "elasticdl", "train", *model, *job, f"--training_data={data}", f"--validation_data={data}")
    tm(tmp_path, "attach", started.split()[0])
    assert accuracy(tm(tmp_path, "logs", started.split()[0])) > 0.9
    begin = "--checkpoint_dir_for_init=model"
    assert accuracy(tm(tmp_path, "evaluate", *model, begin, f"--validation_data={data}")) > 0.9
    predicted = tm(tmp_path, "predict", *model, "--num_workers=1", begin, f"--prediction_data={data}", "--output=out")
    assert "worker 0 predicts (32, 1)" in predicted
    assert sum(len(path.read_text().splitlines()) for path in (tmp_path / "out").rglob("*.jsonl")) == 800


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["Local", "ParameterServerStrategy", "AllreduceStrategy"])
def test_feature_columns_train_with_keras_2(tmp_path: Path, strategy: str) -> None:
    subprocess.run(["make", "estimator"], cwd=TESTS.parent, check=True, timeout=LIMIT)
    chance = random.Random(7)
    kinds = [f"kind{number}" for number in range(20)]
    rows = [
        f"{chance.random()},{(kind := chance.choice(kinds))},{chance.choice(['clay', 'sand', 'peat'])},{int(kind < 'kind15')}"
        for _ in range(800)
    ]
    all_reduce, data = strategy == "AllreduceStrategy", written(tmp_path / "data", rows)
    workers = 2 if all_reduce else 1
    model = (
        "--model_zoo", ZOO, "--model_def", "orchard.columns.custom_model", "--model_params", f"tables={not all_reduce}",
        "--distribution_strategy", strategy,
    )  # fmt: skip
    trained = tm(
        tmp_path, "train", *model, "--num_epochs=8", f"--num_workers={workers}", f"--training_data={data}",
        f"--validation_data={data}", "--output=model", python=ESTIMATOR / "bin",
    )  # fmt: skip
    assert accuracy(trained) > 0.9
    assert "exported model.keras and saved_model" in trained
    evaluated = tm(
        tmp_path, "evaluate", *model[:6], f"--validation_data={data}", "--checkpoint_dir_for_init=model",
        python=ESTIMATOR / "bin",
    )  # fmt: skip
    assert accuracy(evaluated) == pytest.approx(accuracy(trained))


def test_a_model_for_keras_2_is_told_how_to_get_it(tmp_path: Path) -> None:
    data = written(tmp_path / "data", ["1,kind1,clay,1"])
    command = [
        sys.executable, "-m", "trainmaster.zoo", "train", "--model_zoo", str(ZOO), "--model_def", "orchard.columns.custom_model",
        "--training_data", str(data),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode != 0
    assert "install tf_keras and set TF_USE_LEGACY_KERAS=1" in done.stderr
