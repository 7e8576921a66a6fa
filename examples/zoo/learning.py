"""Train a model of the zoo by `tm train`, for its test: it needs Trainmaster, and what the model's requirements.txt lists."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ZOO = Path(__file__).resolve().parent


def evaluated(model, data, epochs, batch, folder):
    """Write the data and train the model in an empty folder; return its metrics on the data that are held out."""
    subprocess.run([sys.executable, ZOO / "data.py", data, "--to", folder], check=True)
    done = subprocess.run(
        ["tm", "train", "--model_zoo", ZOO, "--model_def", model, "--distribution_strategy", "Local",
         "--training_data", f"{data}/train", "--validation_data", f"{data}/test", "--minibatch_size", str(batch),
         "--num_epochs", str(epochs), "--output", "model"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    *_, metrics = re.findall(r"Evaluation metrics\[step=\d+\]: (\{.*\})$", done.stdout, re.MULTILINE)
    return ast.literal_eval(metrics)
