"""The model `points` learns: pytest points/test_points.py, in the directory of the zoo. It needs Trainmaster and PyTorch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ZOO = Path(__file__).resolve().parent.parent
DATA = "points"
# Model -> epochs, batch, metric, the least that it must be on the data that are held out.
MODELS = {"points.points.custom_model": (8, 64, "accuracy", 0.95)}


def tm(folder, *words):
    done = subprocess.run(["tm", *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", MODELS)
def test_the_model_learns(name, tmp_path):
    epochs, batch, metric, least = MODELS[name]
    model = ["--model_zoo", str(ZOO), "--model_def", name]
    subprocess.run([sys.executable, ZOO / "points/data.py", "data"], cwd=tmp_path, check=True)
    tm(tmp_path, "train", *model, "--training_data", "data/train", "--num_epochs", str(epochs), "--minibatch_size", str(batch),
       "--distribution_strategy", "Local", "--output", "model")  # fmt: skip
    said = tm(tmp_path, "evaluate", *model, "--validation_data", "data/test", "--checkpoint_dir_for_init", "model")
    assert float(re.search(rf"'{metric}': ([\d.]+)", said)[1]) >= least
