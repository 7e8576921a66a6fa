"""Try one setting of a model on handwritten digits; the task's index chooses which one.

    TRAINMASTER_INDEX=1 python try.py
    tm run job.yaml              # all of them, as many at a time as there is room for

Tries know nothing of each other. One that does not learn ends with status 1; the job bears some of these.
"""

import itertools
import json
import os
import sys
import warnings
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

INDEX = int(os.environ.get("TRAINMASTER_INDEX", 0))
RESULTS = Path(os.environ.get("TRAINMASTER_OUTPUT_RESULTS", "results"))
SETTINGS = [{"hidden": h, "rate": r} for h, r in itertools.product((16, 64), (0.001, 0.01, 0.1, 10.0))]


def main():
    setting = SETTINGS[INDEX % len(SETTINGS)]
    digits = load_digits()
    pixels, held_pixels, labels, held_labels = train_test_split(digits.data / 16, digits.target, random_state=0)
    model = MLPClassifier(
        hidden_layer_sizes=(setting["hidden"],), learning_rate_init=setting["rate"], max_iter=30, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # thirty rounds are not meant to converge
        model.fit(pixels, labels)
    accuracy = float(model.score(held_pixels, held_labels))
    print(f"{setting}: {accuracy:.4f} of the held-out digits read rightly", flush=True)
    if accuracy < 0.5:
        sys.exit(f"{setting} does not learn")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{INDEX}.json").write_text(json.dumps({**setting, "accuracy": accuracy}) + "\n")


if __name__ == "__main__":
    main()
