"""Learn from a stream: records come line by line on standard input, in whatever language, from whatever storage.

    cat ../digits/data/train/*.csv | python train.py      # alone
    tm run job.yaml                                       # by Trainmaster, here or on a cluster

Each worker learns a model of its own from its records (several epochs of its part of the files, if the job says so). At
the end it says how well it reads the held-out digits.
"""

import itertools
import json
import os
import sys
from pathlib import Path

import numpy as np
from sklearn.neural_network import MLPClassifier

MODEL = Path(os.environ.get("TRAINMASTER_OUTPUT_MODEL", "model"))
TEST = Path(os.environ.get("TRAINMASTER_INPUT_TEST", Path(__file__).parent.parent / "digits" / "data" / "test"))
BATCH = 50


def parsed(lines):
    """Pixels and labels of some records."""
    table = np.array([line.split(",") for line in lines], dtype=float)
    return table[:, 1:] / 16, table[:, 0].astype(int)


def main():
    model = MLPClassifier(hidden_layer_sizes=(128,), learning_rate_init=3e-3, random_state=0)
    records = 0
    while lines := list(itertools.islice(sys.stdin, BATCH)):
        model.partial_fit(*parsed(lines), classes=range(10))
        records += len(lines)
        if records % (BATCH * 20) == 0:
            print(f"{records} records, loss {model.loss_:.4f}", flush=True)
    if not records:
        sys.exit("no record came on standard input")
    paths = TEST.glob("*.csv") if TEST.is_dir() else TEST.parent.glob(TEST.name)
    held = parsed([line for path in sorted(paths) for line in path.read_text().splitlines()])
    accuracy = float(model.score(*held))
    print(f"{records} records read; {accuracy:.4f} of the held-out digits read rightly", flush=True)
    MODEL.mkdir(parents=True, exist_ok=True)
    np.savez(MODEL / "model.npz", *model.coefs_, *model.intercepts_)
    (MODEL / "result.json").write_text(json.dumps({"accuracy": accuracy, "records": records}) + "\n")


if __name__ == "__main__":
    main()
