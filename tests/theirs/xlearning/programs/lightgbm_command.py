#!/usr/bin/env python
"""Stand in for LightGBM's command: train on one machine with the settings of a file (config=FILE)."""

import sys
from pathlib import Path

import lightgbm

lines = [line.split("#")[0] for line in Path(sys.argv[1].partition("=")[2]).read_text().splitlines()]
settings = {key.strip(): value.strip() for key, mark, value in (line.partition("=") for line in lines) if mark}
machines = Path(settings.pop("machine_list_file")).read_text().splitlines()
if int(settings.pop("num_machines")) != len(machines):
    sys.exit(f"the list of machines has {len(machines)} lines")
train, valid, model = settings.pop("data"), settings.pop("valid_data"), settings.pop("output_model")
settings = {key: value for key, value in settings.items() if key not in ("local_listen_port", "task", "tree_learner")}
rows, scores = lightgbm.Dataset(train), {}
booster = lightgbm.train(
    settings, rows, int(settings.pop("num_trees")), [lightgbm.Dataset(valid, reference=rows)],
    callbacks=[lightgbm.record_evaluation(scores)],
)  # fmt: skip
booster.save_model(model)
print("auc", scores["valid_0"]["auc"][-1])
