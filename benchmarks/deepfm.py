"""Examples a second of DeepFM on data in the shape of Criteo's, 1 parameter server and 2 workers, and of TensorFlow's own strategy.

    python benchmarks/deepfm.py [--runs 3]            # needs `make tensorflow estimator`

The model is `clicks.deepfm` of the examples: 26 fields, 1,000,012 ids, rows of 16 and of 1, two dense layers, Adam, batches of 512. Ours is
`tm train --use_async`. The peer is ParameterServerStrategy with a ClusterCoordinator of TensorFlow 2.15, whose strategy is asynchronous
too: the same model in its Keras, the same records as TFRecords, a dataset for each worker, decoded batch by batch and prefetched,
`PACKED` steps for each function that is scheduled. TensorFlow's Adam moves the whole table at each step. So there are two peers: one with
that, and one with an Adam that moves the rows of the batch alone, as ours does, written as TensorFlow Addons had it (LazyAdam).

Both begin to be measured behind `WARM` steps, which is more than an epoch: all rows are there then. Ours and the peers' runs take turns.
The note has the seconds of processor of all processes of a run for 100,000 examples.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FIELDS, IDS, DIMENSION, BATCH = 26, 1_000_012, 16, 512
RATE = 3e-3  # of Adam, as in the example
RECORDS = 200_000  # four of five are for training: 312 batches
WARM, STEPS = 400, 1200
PACKED = 10  # steps of the peer for each function that is scheduled
SLOW = 0.1  # of the steps suffice for the peer whose step takes a second
WORKERS = 2
LIMIT = 900.0  # s of one run
MARK = "BENCHMARK_DEEPFM"  # a variable that names the run of a process
# The same model in a worker that pulls the rows of a batch when its step begins.
UNPREFETCHED = """from clicks.deepfm import custom_model, eval_metrics_fn, feed, loss, optimizer
from trainmaster.zoo.models.server_strategy import ServerStrategy

ServerStrategy._prefetch = lambda self: None
"""
STEP = re.compile(r"step=(\d+) .*loss=")


# -- the peer, in the environment of TensorFlow 2.15 --


def serve(kind: str, index: str) -> None:
    """Be a server of TensorFlow, until the end."""
    import tensorflow as tf

    cluster = json.loads(os.environ["CLUSTER"])
    tf.distribute.Server(tf.train.ClusterSpec(cluster), kind, int(index), protocol="grpc", start=True).join()


def coordinate(optimizer: str, files: str, warm: str, steps: str) -> None:
    """Train by TensorFlow's strategy: print a line at the beginning and the end of what is measured."""
    import tensorflow as tf

    cluster = tf.train.ClusterSpec(json.loads(os.environ["CLUSTER"]))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(256 << 10, max_shards=1)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = peer_model(tf)
        adam = (lazy_adam(tf) if optimizer == "lazy" else tf.keras.optimizers.legacy.Adam)(RATE)
        adam.iterations, model(tf.zeros((1, FIELDS), tf.int32))

    def dataset() -> Any:
        records = tf.data.TFRecordDataset(tf.io.gfile.glob(files)).shuffle(4096).repeat().batch(BATCH, True)

        def parse(batch: Any) -> Any:
            numbers = tf.reshape(tf.io.decode_raw(batch, tf.int32), (BATCH, FIELDS + 1))
            return numbers[:, :FIELDS], tf.cast(numbers[:, FIELDS:], tf.float32)

        return records.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")

    def step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(entropy(labels, model(features, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        adam.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905  TensorFlow traces a zip of its own
        return loss

    @tf.function
    def train(iterator: Any) -> Any:
        loss = tf.constant(0.0)
        for _ in tf.range(PACKED):
            loss = strategy.run(step, args=next(iterator))
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(lambda: dataset()))
    for count in (int(warm), int(steps)):
        print("measured", flush=True)
        losses = [coordinator.schedule(train, args=(iterator,)) for _ in range(count // PACKED)]
        coordinator.join()
    print(f"measured {float(losses[-1].fetch()):.4f}", flush=True)


def peer_model(tf: Any) -> Any:
    """Return the model of examples/zoo/clicks/deepfm.py in TensorFlow's Keras 2."""
    layers = tf.keras.layers
    features = tf.keras.Input((FIELDS,), dtype="int32")
    normal = tf.keras.initializers.RandomNormal(stddev=0.1)
    vectors = layers.Embedding(IDS, DIMENSION, embeddings_initializer=normal)(features)
    weights = layers.Embedding(IDS, 1, embeddings_initializer="zeros")(features)
    pairs = (tf.square(tf.reduce_sum(vectors, 1)) - tf.reduce_sum(tf.square(vectors), 1)) / 2
    dense = layers.Flatten()(vectors)
    for width in (64, 32):
        dense = layers.Dense(width, activation="relu")(dense)
    terms = [tf.reduce_sum(weights, 1), tf.reduce_sum(pairs, 1, keepdims=True), layers.Dense(1)(dense)]
    return tf.keras.Model(features, layers.Add()(terms))


def lazy_adam(tf: Any) -> Any:
    """Return TensorFlow's Adam with the rows of the batch alone moved, as `tensorflow_addons.optimizers.LazyAdam` does it."""

    class LazyAdam(tf.keras.optimizers.legacy.Adam):  # type: ignore[misc,name-defined]
        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any, apply_state: Any = None) -> Any:
            kind = var.dtype.base_dtype
            known = (apply_state or {}).get((var.device, kind)) or self._fallback_apply_state(var.device, kind)
            momentum, velocity = self.get_slot(var, "m"), self.get_slot(var, "v")
            m = known["beta_1_t"] * tf.gather(momentum, indices) + known["one_minus_beta_1_t"] * grad
            v = known["beta_2_t"] * tf.gather(velocity, indices) + known["one_minus_beta_2_t"] * tf.square(grad)
            change = known["lr"] * m / (tf.sqrt(v) + known["epsilon"])
            scatter = tf.raw_ops
            return tf.group(
                scatter.ResourceScatterUpdate(resource=momentum.handle, indices=indices, updates=m),
                scatter.ResourceScatterUpdate(resource=velocity.handle, indices=indices, updates=v),
                scatter.ResourceScatterSub(resource=var.handle, indices=indices, updates=change),
            )

    return LazyAdam


# -- the runs --


def run_peer(optimizer: str, folder: Path, environ: Mapping[str, str]) -> tuple[float, float]:
    """Return examples a second, and seconds of processor for 100,000 examples."""
    import figures

    share = SLOW if optimizer == "adam" else 1.0
    warm, steps = max(PACKED, int(WARM * share)), int(STEPS * share)
    names = [("ps", 0), *(("worker", index) for index in range(WORKERS))]
    cluster: dict[str, list[str]] = {"chief": [f"127.0.0.1:{free_port()}"], "ps": [], "worker": []}
    for kind, _ in names:
        cluster[kind].append(f"127.0.0.1:{free_port()}")
    own = {
        **environ,
        MARK: "peer",
        "CLUSTER": json.dumps(cluster),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    python = str(figures.BIN.parent / "estimator" / "bin" / "python")
    program = [python, str(Path(__file__).absolute())]
    files = str(folder / "tfrecords" / "*")
    with contextlib.ExitStack() as stack:
        for kind, index in names:
            command = [*program, "serve", kind, str(index)]
            stack.enter_context(started(command, own, folder, stdout=subprocess.DEVNULL))
        command = [*program, "coordinate", optimizer, files, str(warm), str(steps)]
        chief = stack.enter_context(started(command, own, folder, stdout=subprocess.PIPE))
        said = (line for line in chief.stdout if line.startswith("measured"))
        next(said)
        next(said)
        begin, before = time.monotonic(), processor_seconds("peer")
        if next(said, None) is None:
            raise RuntimeError((folder / "errors").read_text()[-3000:])
        clock, core = time.monotonic() - begin, processor_seconds("peer") - before
    return steps * BATCH / clock, core / (steps * BATCH) * 1e5


def run_ours(
    folder: Path, environ: Mapping[str, str], model: str = "clicks.deepfm.custom_model"
) -> tuple[float, float]:
    """Return the same of `tm train`. Steps are pushes that the server took, so those of all workers."""
    import figures

    own = {**environ, MARK: "ours", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [
        figures.TM, "train", "--model_zoo", str(folder / "zoo"), "--model_def", model,
        "--model_params", f"ids={IDS};dimension={DIMENSION}", "--training_data", str(folder / "clicks" / "train"),
        "--minibatch_size", str(BATCH), "--num_epochs", "100", "--max_step", str(WARM + STEPS + 60),
        "--distribution_strategy", "ParameterServerStrategy", "--num_ps_pods", "1", "--num_workers", str(WORKERS),
        "--use_async", "--log_loss_steps", "20",
    ]  # fmt: skip
    first = last = (0.0, 0, 0.0)  # time, steps, processor
    with started(command, own, folder, stdout=subprocess.PIPE) as job:
        for line in job.stdout:
            match = STEP.search(line)
            steps = int(match[1]) if match else 0
            if not first[1] and steps >= WARM:
                first = time.monotonic(), steps, processor_seconds("ours")
            elif not last[1] and steps >= WARM + STEPS:
                last = time.monotonic(), steps, processor_seconds("ours")
        if job.wait() or not last[1]:
            raise RuntimeError((folder / "errors").read_text()[-3000:])
    examples = (last[1] - first[1]) * BATCH
    return examples / (last[0] - first[0]), (last[2] - first[2]) / examples * 1e5


@contextlib.contextmanager
def started(command: list[str], environ: Mapping[str, str], folder: Path, **options: Any) -> Iterator[Any]:
    with (folder / "errors").open("a") as errors:
        process = subprocess.Popen(
            command, env=environ, cwd=folder, stderr=errors, text=True, start_new_session=True, **options
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def processor_seconds(mark: str) -> float:
    """Return the seconds of processor of all processes of a run."""
    import psutil

    total = 0.0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                times = process.cpu_times()
                total += times.user + times.system
    return total


def write_all(folder: Path) -> None:
    """Write the zoo with one more model, the records, and the same as TFRecords for the peer."""
    import figures
    import tensorflow as tf

    from trainmaster.runtime.formats import recordio

    zoo = figures.ROOT / "examples" / "zoo"
    shutil.copytree(zoo / "clicks", folder / "zoo" / "clicks", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "zoo" / "clicks" / "unprefetched.py").write_text(UNPREFETCHED)
    make = [sys.executable, str(zoo / "data.py"), "clicks", "--to", str(folder)]
    subprocess.run([*make, "--rows", str(RECORDS), "--ids", str(IDS)], check=True, stdout=subprocess.DEVNULL)
    (folder / "tfrecords").mkdir()
    for path in sorted((folder / "clicks" / "train").iterdir()):
        with path.open("rb") as file, tf.io.TFRecordWriter(str(folder / "tfrecords" / path.name)) as writer:
            for record in recordio.records(file, path.name, 0, path.stat().st_size):
                writer.write(record)


def measure(runs: int) -> list[Any]:
    import figures

    kinds = {
        "ours": lambda: run_ours(folder, environ),
        "not prefetched": lambda: run_ours(folder, environ, "clicks.unprefetched.custom_model"),
        "lazy": lambda: run_peer("lazy", folder, environ),
        "adam": lambda: run_peer("adam", folder, environ),
    }
    results: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with figures.place() as environ, tempfile.TemporaryDirectory(prefix="tm-bench-") as name:
        folder = Path(name)
        write_all(folder)
        for _ in range(runs):
            for kind, run in kinds.items():
                results[kind].append(run())
    rates = {kind: [rate for rate, _ in measured] for kind, measured in results.items()}
    core = {kind: statistics.median(seconds for _, seconds in measured) for kind, measured in results.items()}

    def row(figure: str, peer_name: str, peer: str, least: float | None) -> figures.Row:
        note = f"{core['ours']:.1f} s of processor for 100,000 examples, and {core[peer]:.1f}"
        return figures.Row(
            figure, rates["ours"], "examples/s", None, peer_name, rates[peer], least, note, more_is_better=True
        )

    return [
        row("DeepFM", "TensorFlow, its own Adam", "adam", 3.0),
        row(
            "DeepFM, beside an Adam for TensorFlow that moves the batch's rows alone",
            "TensorFlow, LazyAdam",
            "lazy",
            None,
        ),
        row("DeepFM, rows of the next batch prefetched", "not prefetched", "not prefetched", None),
    ]


if __name__ == "__main__":
    roles = {"serve": serve, "coordinate": coordinate}
    if sys.argv[1:2] and sys.argv[1] in roles:
        roles[sys.argv[1]](*sys.argv[2:])
    else:
        import figures

        figures.main(measure, 3, __doc__)
