"""The accuracy of a model that two workers train on a parameter server, beside one process alone: the AUC on data held out, by seed.

    python benchmarks/ps_accuracy.py [--runs 5]

DeepFM of the zoo on its clicks (20,000 records, 26 fields), 3 epochs in batches of 64. `--runs` is the number of seeds; a seed makes the
initial weights. In sync mode a stale push is refused and made again, so each push is a step, as alone. In async mode none is refused, once
with the learning rate as it is, and once divided by the staleness. The noise is the spread of one process over the seeds.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import figures

ZOO = figures.ROOT / "examples" / "zoo"
SEEDED = """
import os
import keras
keras.utils.set_random_seed(int(os.environ["SEED"]))
from clicks.deepfm import custom_model, eval_metrics_fn, feed, loss, optimizer
"""
ALONE = ["--distribution_strategy", "Local"]
SERVED = [
    "--distribution_strategy", "ParameterServerStrategy", "--num_ps_pods", "1", "--num_workers", "2", "--embedding_size", "4096",
]  # fmt: skip
WAYS = {
    "in sync mode": SERVED,
    "in async mode": [*SERVED, "--use_async", "true"],
    "in async mode, rate by staleness": [*SERVED, "--use_async", "true", "--lr_staleness_modulation", "true"],
}


def reached(flags: Sequence[str], seed: int, folder: Path, environ: Mapping[str, str]) -> float:
    """Return the AUC at the end of a training."""
    done = subprocess.run(
        [figures.TM, "train", "--model_zoo", "zoo", "--model_def", "clicks.seeded.custom_model", "--training_data", "clicks/train",
         "--validation_data", "clicks/test", "--minibatch_size", "64", "--num_epochs", "3", "--output", f"model-{seed}",
         "--envs", f"SEED={seed}", *flags],
        cwd=folder, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.findall(r"Evaluation metrics\[step=\d+\]: \{'auc': ([\d.]+)", done.stdout)
    if done.returncode or not found:
        raise RuntimeError(f"tm train ended with {done.returncode}: {done.stdout}{done.stderr}")
    shutil.rmtree(folder / f"model-{seed}", ignore_errors=True)
    return float(found[-1])


def measure(runs: int) -> list[figures.Row]:
    results: dict[str, list[float]] = {name: [] for name in ("alone", *WAYS)}
    with figures.place() as environ, tempfile.TemporaryDirectory(prefix="tm-bench-") as name:
        folder = Path(name)
        subprocess.run([sys.executable, str(ZOO / "data.py"), "clicks", "--to", name], check=True, capture_output=True)
        shutil.copytree(ZOO / "clicks", folder / "zoo" / "clicks")
        (folder / "zoo" / "clicks" / "seeded.py").write_text(SEEDED)
        for seed in range(1, runs + 1):
            for way, flags in {"alone": ALONE, **WAYS}.items():
                results[way].append(reached(flags, seed, folder, environ))
    alone = results.pop("alone")
    noise = max(alone) - min(alone)
    note = f"alone {min(alone):.4f} to {max(alone):.4f}"
    rows = []
    for way, ours in results.items():
        least = 1 - noise / statistics.median(alone) if way == "in sync mode" else None
        seen = f"{note}; here {min(ours):.4f} to {max(ours):.4f}, median {statistics.median(ours) - statistics.median(alone):+.4f}"
        rows.append(
            figures.Row(
                f"AUC of two workers {way}", ours, "", None, "one process", alone, least, seen, more_is_better=True
            )
        )
    return rows


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
