"""Stand in for TonY's TensorFlow example: parameter servers and workers by CLUSTER_SPEC, JOB_NAME and TASK_INDEX."""

import argparse
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--data_dir")
parser.add_argument("--working_dir")
args = parser.parse_args()
tf.disable_eager_execution()
cluster = tf.train.ClusterSpec(json.loads(os.environ["CLUSTER_SPEC"]))
job, index = os.environ["JOB_NAME"], int(os.environ["TASK_INDEX"])
server = tf.train.Server(cluster, job_name=job, task_index=index)
if job == "ps":
    server.join()
digits = load_digits()
with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
    step = tf.train.get_or_create_global_step()
    x, y = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.int64, [None])
    logits = tf.matmul(x, tf.get_variable("w", [64, 10])) + tf.get_variable("b", [10])
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)
rng = np.random.default_rng(index)
config = tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
hooks = [tf.train.StopAtStepHook(last_step=args.steps)]
with tf.train.MonitoredTrainingSession(server.target, index == 0, hooks=hooks, config=config) as session:
    while not session.should_stop():
        rows = rng.integers(0, len(digits.data), 64)
        _, value, reached = session.run([train, loss, step], {x: digits.data[rows] / 16, y: digits.target[rows]})
print("trained, loss", value, "step", reached)
