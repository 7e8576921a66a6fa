"""Train on handwritten digits with TensorFlow's ParameterServerStrategy: one program, whose role TF_CONFIG tells.

The parameters are on the `ps`. The `chief` sends steps to the `worker`s, which take them asynchronously, each on rows
of its own choice; after each epoch it writes a checkpoint. An `evaluator`, where there is one that sees the chief's
checkpoints, reads the newest whenever there is one and says how well it does.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a worker that is away is waited for

import numpy as np
import tensorflow as tf

MODEL = Path(os.environ.get("TRAINMASTER_OUTPUT_MODEL", "model"))
DATA = Path(__file__).parent.parent / "digits" / "data"


def read(name):
    """Pixels and labels of an input: all files of its directory."""
    place = Path(os.environ.get(f"TRAINMASTER_INPUT_{name.upper()}", DATA / name))
    table = np.concatenate([np.loadtxt(path, delimiter=",", ndmin=2) for path in sorted(place.glob("*.csv"))])
    return (table[:, 1:] / 16).astype("float32"), table[:, 0].astype("int64")


def serve(resolver):
    """A ps or a worker: it does what the chief asks of it, until it is stopped."""
    server = tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol=resolver.rpc_layer or "grpc"
    )
    print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
    server.join()


class Network(tf.Module):
    """One hidden layer."""

    def __init__(self):
        super().__init__()
        chance = np.random.default_rng(0)
        shapes = [(64, 128), (128,), (128, 10), (10,)]
        self.layers = [tf.Variable(chance.normal(0, 0.1, shape).astype("float32")) for shape in shapes]

    def __call__(self, pixels):
        first, first_bias, last, last_bias = self.layers
        return tf.nn.relu(pixels @ first + first_bias) @ last + last_bias


def accuracy(layers, pixels, labels):
    first, first_bias, last, last_bias = layers
    return float(np.mean((np.maximum(pixels @ first + first_bias, 0) @ last + last_bias).argmax(1) == labels))


def newest(directory):
    """The epochs done and the parameters after them, by the newest checkpoint."""
    paths = sorted(directory.glob("epoch-*.npz"))
    if not paths:
        return 0, None
    with np.load(paths[-1]) as kept:
        return int(paths[-1].stem.split("-")[1]), [kept[name] for name in kept.files]


def keep(directory, epoch, layers):
    """A checkpoint is whole or not there: it is written beside its name and renamed."""
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / "unfinished.npz"
    np.savez(unfinished, *layers)
    unfinished.rename(directory / f"epoch-{epoch:04}.npz")


def lead(resolver, options):
    """The chief."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        network = Network()
    done, layers = newest(options.checkpoints)
    for variable, value in zip(network.layers, layers or (), strict=False):
        variable.assign(value)

    def rows():
        pixels, labels = read("train")
        dataset = tf.data.Dataset.from_tensor_slices((pixels, labels))
        return dataset.shuffle(len(pixels)).repeat().batch(options.batch)

    batches = iter(coordinator.create_per_worker_dataset(rows))

    @tf.function
    def step(batches):
        def replica(pixels, labels):
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, network(pixels))
                loss = tf.reduce_mean(losses)
            for variable, gradient in zip(network.layers, tape.gradient(loss, network.layers), strict=True):
                variable.assign_sub(0.2 * gradient)
            return loss

        return strategy.run(replica, args=next(batches))

    held = read("test")
    for epoch in range(done, options.epochs):
        losses = [coordinator.schedule(step, args=(batches,)) for _ in range(options.steps)]
        coordinator.join()
        layers = [variable.numpy() for variable in network.layers]
        keep(options.checkpoints, epoch + 1, layers)
        print(f"epoch {epoch + 1}: loss {np.mean([loss.fetch() for loss in losses]):.4f}", flush=True)
        print(f"reporter progress:{(epoch + 1) / options.epochs:.4f}", file=sys.stderr, flush=True)
    MODEL.mkdir(parents=True, exist_ok=True)
    np.savez(MODEL / "model.npz", *layers)
    result = {"accuracy": accuracy(layers, *held), "epochs": options.epochs}
    (MODEL / "result.json").write_text(json.dumps(result) + "\n")
    print(f"the end: {result['accuracy']:.4f} of the held-out digits read rightly", flush=True)


def evaluate(options):
    """The evaluator: until the last epoch, or until it is stopped."""
    held, seen = read("test"), 0
    while seen < options.epochs:
        epoch, layers = newest(options.checkpoints)
        if epoch == seen:
            time.sleep(0.2)
            continue
        seen = epoch
        print(f"after epoch {epoch}: {accuracy(layers, *held):.4f} of the held-out digits read rightly", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100, help="steps of an epoch, of all workers together")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--checkpoints", type=Path, default=Path("ckpt"), help="a directory that the chief and an evaluator share"
    )
    options = parser.parse_args()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        serve(resolver)
    elif resolver.task_type == "evaluator":
        evaluate(options)
    else:
        lead(resolver, options)


if __name__ == "__main__":
    main()
