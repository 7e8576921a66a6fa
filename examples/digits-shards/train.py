"""Learn from shards: records are leased to whoever is ready for more, and each is counted exactly once.

    python train.py              # alone: reads all there is
    tm run job.yaml              # by Trainmaster: workers share the records, whichever of them die

Each worker learns a model of its own from the records it reads. A worker that is killed loses what it had not
finished to others: nothing is skipped, and `tm audit` shows that nothing was counted twice.
"""

import json
import os
from pathlib import Path

import numpy as np
from sklearn.neural_network import MLPClassifier

from trainmaster import runtime

MODEL = Path(os.environ.get("TRAINMASTER_OUTPUT_MODEL", "model"))
DATA = Path(__file__).parent.parent / "digits" / "data"
TEST = Path(os.environ.get("TRAINMASTER_INPUT_TEST", DATA / "test"))
BATCH = 50


def parsed(lines):
    """Pixels and labels of some records."""
    table = np.array([line.split(",") for line in lines], dtype=float)
    return table[:, 1:] / 16, table[:, 0].astype(int)


def main():
    me = runtime.task()
    model = MLPClassifier(hidden_layer_sizes=(128,), learning_rate_init=3e-3, random_state=me.index)
    records = step = 0
    for shard in runtime.shards("train", default=str(DATA / "train" / "*.csv"), epochs=15).shards():
        lines = list(shard.records())  # done, and counted, once the next shard is asked for
        for first in range(0, len(lines), BATCH):
            model.partial_fit(*parsed(lines[first : first + BATCH]), classes=range(10))
            step += 1
        records += len(lines)
        if lines:
            runtime.progress(step=step)
    print(f"{records} records read", flush=True)
    if not records:
        MODEL.mkdir(parents=True, exist_ok=True)
        return  # the others were faster, and this output stays empty
    paths = TEST.glob("*.csv") if TEST.is_dir() else TEST.parent.glob(TEST.name)
    held = parsed([line for path in sorted(paths) for line in path.read_text().splitlines()])
    accuracy = float(model.score(*held))
    print(f"{accuracy:.4f} of the held-out digits read rightly", flush=True)
    MODEL.mkdir(parents=True, exist_ok=True)
    np.savez(MODEL / "model.npz", *model.coefs_, *model.intercepts_)
    (MODEL / "result.json").write_text(json.dumps({"accuracy": accuracy, "records": records}) + "\n")


if __name__ == "__main__":
    main()
