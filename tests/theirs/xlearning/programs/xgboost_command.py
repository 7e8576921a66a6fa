#!/usr/bin/env python
"""Stand in for XGBoost's command: train with the settings of a file and of further words."""

import sys
from pathlib import Path

import numpy as np
import scipy.sparse
import xgboost
from sklearn.datasets import load_svmlight_files

lines = [line.split("#")[0].replace(" ", "") for line in Path(sys.argv[1]).read_text().splitlines()]
settings = dict(word.split("=", 1) for word in [*lines, *sys.argv[2:]] if "=" in word)


def matrix(folder: str) -> xgboost.DMatrix:
    parts = load_svmlight_files([str(path) for path in sorted(Path(folder).iterdir())], n_features=127)
    return xgboost.DMatrix(scipy.sparse.vstack(parts[0::2]), label=np.concatenate(parts[1::2]))


train, test = matrix("train"), matrix("test")
chosen = {
    key: settings[key] for key in ("objective", "eta", "gamma", "min_child_weight", "max_depth") if key in settings
}
errors: dict = {}
rounds = min(int(settings["num_round"]), 50)
model = xgboost.train(chosen, train, rounds, evals=[(test, "test")], evals_result=errors, verbose_eval=10)
model.save_model(f"{settings['model_dir']}/final.json")
print("test error", next(iter(errors["test"].values()))[-1])
