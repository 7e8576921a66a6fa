"""Rows a second of inference from an RDD to an RDD by a model that does nothing, beside TensorFlowOnSpark in the same run.

    ROWS=100000 python benchmarks/spark_inference.py [--runs 5]

A row is a list of 784 floats; its result is 0. The peer gets a tenth of the rows, since it takes a minute for so many. Both run the same
function, which asks its `DataFeed` for batches of 128, in one executor. Before the clock starts, some rows go all the way. A rate counts
from the action on the RDD of results to its end. The peer is there after `make peers frameworks`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import figures
import tfos
from spark_start import run_driver

ROWS = int(os.environ.get("ROWS", "100000"))
FASTER = 20.0

# More arguments: whose cluster, the number of rows.
INFERENCE = """
module = Ours
if sys.argv[4] == "tfos":
    from tensorflowonspark import TFCluster as module
count = int(sys.argv[5])

def function(arguments, node):
    feed = node.get_data_feed(train_mode=False)
    while not feed.should_stop():
        batch = feed.next_batch(128)
        if batch:
            feed.batch_results([0] * len(batch))

rows = context.range(count, numSlices=2).map(lambda number: [number % 256 / 255] * 784)
some = context.parallelize([[0.0] * 784] * 200, 1)
cluster = module.run(context, function, [], 1, 0, input_mode=module.InputMode.SPARK)
assert cluster.inference(some).count() == 200
began = time.monotonic()
assert cluster.inference(rows).count() == count
print("figures:" + json.dumps(count / (time.monotonic() - began) / 1000), flush=True)
os._exit(0)
"""


def measure(runs: int) -> list[figures.Row]:
    from trainmaster.clusters import spark

    [package] = (figures.BIN.parent / "spark-3.5").glob("lib/python3*/site-packages/pyspark")
    rates: dict[str, list[float]] = {}
    with figures.place() as environ, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        peer = tfos.environment(place / "peer")
        cluster = spark.up(spark.Settings(nodes=1, memory=4096, cores=4), folder=place / "spark", home=package)
        python = {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        try:
            for run in range(runs):
                for whose in ("cluster", *(["tfos"] if peer else [])):
                    cores = 2 if whose == "cluster" else 1  # the peer's executors must have one slot
                    more: tuple[Any, ...] = (whose, str(ROWS if whose == "cluster" else ROWS // 10))
                    took = run_driver(
                        cluster, {**environ, **python, **peer}, INFERENCE, place / f"{whose}-{run}", cores, 1, *more
                    )
                    rates.setdefault(whose, []).append(took)
        finally:
            spark.down(folder=place / "spark")
    figure, unit = "inference from an RDD to an RDD", "k rows/s"
    if not peer:
        return [figures.Row(figure, rates["cluster"], unit, note=tfos.MISSING, more_is_better=True)]
    names: dict[str, Any] = {"peer_name": "TensorFlowOnSpark", "peer": rates["tfos"]}
    return [figures.Row(figure, rates["cluster"], unit, least=FASTER, more_is_better=True, **names)]


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
