"""Train TensorFlow 2.15's Estimator on handwritten digits: `model_fn`, and an `input_fn` that reads shards.

    python train.py              # alone
    tm run job.yaml              # by Trainmaster

The last TensorFlow with Estimators is 2.15, for Python 3.9 to 3.11. TF_CONFIG tells `train_and_evaluate` of chief, worker and ps. Chief and
worker take shards from the same queue, so each record counts once in an epoch, whoever reads it.
"""

import json
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import numpy as np
import tensorflow as tf

from trainmaster.runtime import tf_data

MODEL = Path(os.environ.get("TRAINMASTER_OUTPUT_MODEL", "model"))
DATA = Path(__file__).parent.parent / "digits" / "data"
SIGNATURE = tf.TensorSpec([None, 64], tf.float32), tf.TensorSpec([None], tf.int64)


def parse(lines):
    table = np.array([line.split(",") for line in lines], np.float32)
    return table[:, 1:] / 16, table[:, 0].astype(np.int64)


def train_input():
    return tf_data.dataset("train", 32, parse, SIGNATURE, shuffle=512, seed=1, default=f"{DATA}/train/*.csv", epochs=15)


def test_input():
    place = Path(os.environ.get("TRAINMASTER_INPUT_TEST", DATA / "test"))
    lines = [line for path in sorted(place.glob("*.csv")) for line in path.read_text().splitlines()]
    return tf.data.Dataset.from_tensors(parse(lines))


def model_fn(features, labels, mode, params):
    hidden = tf.compat.v1.layers.dense(features, params["width"], tf.nn.relu)
    scores = tf.compat.v1.layers.dense(hidden, 10)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"digit": tf.argmax(scores, 1)})
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, scores)
    metrics = {"accuracy": tf.compat.v1.metrics.accuracy(labels, tf.argmax(scores, 1))}
    step = tf.compat.v1.train.get_global_step()
    minimize = tf.compat.v1.train.AdamOptimizer(2e-3).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=minimize, eval_metric_ops=metrics)


def main():
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("type", "chief")
    strategy = None
    if "TF_CONFIG" in os.environ:
        strategy = tf.compat.v1.distribute.experimental.ParameterServerStrategy()
    folder = Path(os.environ.get("TRAINMASTER_CHECKPOINT", "checkpoints"))
    config = tf.estimator.RunConfig(str(folder), train_distribute=strategy, save_checkpoints_secs=5, tf_random_seed=1)
    estimator = tf.estimator.Estimator(model_fn, config=config, params={"width": 128})
    train, test = tf.estimator.TrainSpec(train_input), tf.estimator.EvalSpec(test_input, steps=None, throttle_secs=0)
    tf.estimator.train_and_evaluate(estimator, train, test)
    if task == "chief":
        accuracy = float(estimator.evaluate(test_input)["accuracy"])
        print(f"{accuracy:.4f} of the held-out digits read rightly", flush=True)
        MODEL.mkdir(parents=True, exist_ok=True)
        (MODEL / "result.json").write_text(json.dumps({"accuracy": accuracy}) + "\n")


if __name__ == "__main__":
    main()
