"""The model `points` learns: pytest points/test_points.py, in the directory of the zoo. It needs Trainmaster and PyTorch."""

import re
import subprocess
import sys
from pathlib import Path

ZOO = Path(__file__).resolve().parent.parent
MODEL = ["--model_zoo", str(ZOO), "--model_def", "points.points.custom_model"]


def tm(folder, *words):
    done = subprocess.run(["tm", *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_model_learns(tmp_path):
    subprocess.run([sys.executable, ZOO / "points/data.py", "data"], cwd=tmp_path, check=True)
    tm(tmp_path, "train", *MODEL, "--training_data", "data/train", "--num_epochs", "8",
       "--distribution_strategy", "Local", "--output", "model")  # fmt: skip
    said = tm(tmp_path, "evaluate", *MODEL, "--validation_data", "data/test", "--checkpoint_dir_for_init", "model")
    assert float(re.search(r"'accuracy': ([\d.]+)", said)[1]) > 0.95
