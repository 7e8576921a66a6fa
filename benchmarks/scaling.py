"""How training together grows with the workers: 1, 2, 4 and 8 of them on this machine, under `tm run` and two peers, in turn.

    [STEPS=40] [WORKERS=1,2,4,8] python benchmarks/scaling.py [--runs 3]

A step computes for 100 ms and makes 25 MB of gradients in 25 layers, from the last to the first. They are added up over all workers while
the earlier layers are still computed: by PyTorch's DistributedDataParallel over gloo under `tm run` and under torchrun; under
TensorFlowOnSpark, whose programs are TensorFlow's, by MultiWorkerMirroredStrategy (a ring over gRPC). The gradients are real; the computing
is a pause (`time.sleep`), as for a processor that a GPU computes for: with it on the machine's own cores, what would be measured is how
many of those there are. The adding up itself is done by these cores.

A rate is in steps of one worker under the same launcher: 8 workers that are as fast as one alone make 8. The loss that torchrun has too is
the collective's; a larger loss of ours is our share. TensorFlowOnSpark's own figure is 6.1 on 8 machines (Inception, one GPU each,
published in 2017). It is measured where `make peers frameworks spark` were run; a size that does not end within the limit, as eight
TensorFlows on two cores may not, is left out and said.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import figures
import tfos

sys.path[:0] = [str(figures.ROOT / "src")]

WORKERS = tuple(map(int, os.environ.get("WORKERS", "1,2,4,8").split(",")))  # the first is 1
LAYERS, LAYER = 25, 250_000  # float32 parameters of a layer: 1 MB
COMPUTE = 0.1  # s of a step
WARM, STEPS = 5, int(os.environ.get("STEPS", "40"))
LEAST = 0.95  # of as many workers as there are
LIMIT = 600.0  # s of one run
PUBLISHED = {8: "; published for it: 6.1 on 8 machines"}


def train() -> None:
    """Be one worker; rank 0 prints the median seconds of a step."""
    import torch
    import torch.distributed as dist
    from torch import nn

    class Pause(torch.autograd.Function):
        """Multiply by 1, and take a layer's part of the step going back."""

        @staticmethod
        def forward(context: object, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
            time.sleep(COMPUTE / LAYERS)
            return gradient

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.rand(LAYER))

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = Pause.apply(value + self.weights)
            return result

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*(Layer() for _ in range(LAYERS))), bucket_cap_mb=4)
    value, seconds = torch.zeros(LAYER), []
    for _ in range(WARM + STEPS):
        model.zero_grad()
        began = time.perf_counter()
        model(value).sum().backward()
        seconds.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(f"step={statistics.median(seconds[WARM:]):.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def ours(workers: int) -> list[str]:
    sizes = ["--replicas", str(workers), "--cores", "0.25", "--memory", "1GiB"]
    return [figures.TM, "run", "--framework", "pytorch", *sizes, "--", sys.executable, __file__, "worker"]


def theirs(workers: int) -> list[str]:
    torchrun = str(figures.BIN / "torchrun")
    rendezvous = ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    return [torchrun, *rendezvous, f"--nproc-per-node={workers}", __file__, "worker"]


def step_seconds(command: Sequence[str], environ: dict[str, str]) -> float:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT, check=False)
    lines = [line for line in done.stdout.splitlines() if "step=" in line]
    if not lines:
        raise RuntimeError(f"{' '.join(command[:4])}: {done.stderr[-4000:]}")
    return float(lines[0].partition("step=")[2])


# A driver of the peer: each executor has one slot and is one worker. Arguments: the directory of pyspark, workers, a file, and the sizes.
DRIVER = """
import json, os, sys
sys.path.append(sys.argv[1])
from pyspark import SparkConf, SparkContext
from tensorflowonspark import TFCluster
workers, sizes = int(sys.argv[2]), json.loads(sys.argv[4])
conf = SparkConf().set("spark.executor.cores", "1").set("spark.cores.max", str(workers)).set("spark.executor.memory", "512m")
for name in ("PYTHONPATH", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_CPP_MIN_LOG_LEVEL"):
    conf.set(f"spark.executorEnv.{name}", os.environ[name])
context = SparkContext(conf=conf.set("spark.driver.memory", "512m").set("spark.task.maxFailures", "1"))

def function(arguments, node):
    import statistics, time
    import numpy
    import tensorflow as tf
    path, layers, layer, compute, warm, steps = arguments
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    weights = tf.random.uniform([layer])

    def pause(value):
        time.sleep(compute / layers)
        return value

    @tf.function
    def step():
        def replica():
            sums, token = [], numpy.float32(0)
            for _ in range(layers):
                token = tf.numpy_function(pause, [token], tf.float32)
                gradient = weights + tf.ensure_shape(token, [])
                sums.append(tf.distribute.get_replica_context().all_reduce("sum", gradient))
            return tf.add_n([tf.reduce_sum(total) for total in sums])
        return strategy.run(replica)

    seconds = []
    for _ in range(warm + steps):
        began = time.perf_counter()
        step().numpy()
        seconds.append(time.perf_counter() - began)
    if node.job_name == "chief":
        with open(path, "w") as file:
            file.write(str(statistics.median(seconds[warm:])))

TFCluster.run(context, function, [sys.argv[3], *sizes], workers, 0, master_node="chief").shutdown(timeout=-1)
print(f"step={open(sys.argv[3]).read()}", flush=True)
os._exit(0)
"""


class OnSpark:
    """The peer TensorFlowOnSpark, on a Spark cluster of its own."""

    def __init__(self, place: Path, environ: dict[str, str]) -> None:
        from trainmaster.clusters import spark

        self.place, self.reasons = place, dict[int, str]()  # of workers whose runs did not end
        environment = tfos.environment(place / "peer")
        self._cluster: Any = None
        if environment:
            [package] = (figures.BIN.parent / "spark-3.5").glob("lib/python3*/site-packages/pyspark")
            settings = spark.Settings(nodes=1, memory=8192, cores=max(WORKERS))
            self._cluster = spark.up(settings, folder=place / "spark", home=package)
            self._environ = {
                **self._cluster.environ,
                **environ,
                **environment,
                "TF_NUM_INTRAOP_THREADS": "1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
            }

    def step_seconds(self, workers: int) -> float | None:
        """Return the median seconds of a step; None where the peer is not there, or did not end in time."""
        if self._cluster is None or workers in self.reasons:
            return None
        sizes = json.dumps([LAYERS, LAYER, COMPUTE, WARM, STEPS])
        result = str(self.place / f"result-{time.monotonic_ns()}")
        command = [sys.executable, "-c", DRIVER, str(self._cluster.home.folder.parent), str(workers), result, sizes]
        try:
            return step_seconds(command, self._environ)
        except subprocess.TimeoutExpired:
            self.reasons[workers] = f"TensorFlowOnSpark did not end within {LIMIT:g} s"
        except RuntimeError as error:
            print(error, file=sys.stderr)
            self.reasons[workers] = "TensorFlowOnSpark failed"
        return None

    def close(self) -> None:
        from trainmaster.clusters import spark

        spark.down(folder=self.place / "spark")


def measure(runs: int) -> list[figures.Row]:
    rates: dict[tuple[str, int], list[float]] = {}
    with figures.place() as environ, tempfile.TemporaryDirectory() as folder:
        environ = {**environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.path.dirname(__file__)}
        on_spark = OnSpark(Path(folder), environ)
        try:
            for _ in range(runs):
                for name, launch in {"tm": ours, "torchrun": theirs, "tfos": None}.items():
                    seconds = {
                        workers: step_seconds(launch(workers), environ) if launch else on_spark.step_seconds(workers)
                        for workers in WORKERS
                    }
                    for workers, took in seconds.items():
                        if took and seconds[1]:
                            rates.setdefault((name, workers), []).append(workers * seconds[1] / took)
        finally:
            on_spark.close()
    return [
        row for workers in WORKERS[1:] for row in rows_of(workers, rates, on_spark.reasons.get(workers, tfos.MISSING))
    ]


def rows_of(workers: int, rates: dict[tuple[str, int], list[float]], reason: str) -> list[figures.Row]:
    """Return the rows of a number of workers: the rate beside each peer, and the part of the loss that torchrun has not."""
    ours, torchrun, theirs = (rates.get((name, workers), []) for name in ("tm", "torchrun", "tfos"))
    wanted = LEAST * workers
    note = f"wanted {wanted:g}: {'reached' if statistics.median(ours) >= wanted else 'not reached'}"
    figure, peers = f"rate of {workers} workers", [("torchrun", torchrun)]
    if len(theirs) == len(ours):
        peers.append(("TensorFlowOnSpark", theirs))
    else:
        note += f"; {reason}"
    note += PUBLISHED.get(workers, "")
    rows = [
        figures.Row(figure, ours, "workers", None, name, peer, note=note, more_is_better=True) for name, peer in peers
    ]
    lost = [100 * (1 - rate / workers) for rate in ours]
    losses = [100 * (1 - rate / workers) for rate in torchrun]
    shares = [mine - its for mine, its in zip(lost, losses, strict=True)]
    words = f"of {statistics.median(lost):.1f} % lost, torchrun loses {statistics.median(losses):.1f} % too"
    return [*rows, figures.Row(f"our share of what {workers} workers lose", shares, "%", 5.0, note=words)]


if __name__ == "__main__":
    train() if sys.argv[1:] == ["worker"] else figures.main(measure, 3, __doc__)
