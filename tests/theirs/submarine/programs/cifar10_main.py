"""Stand in for the Estimator of CIFAR-10: its flags, TF_CONFIG, data and events on HDFS."""

import argparse
import json
import os
import signal

import tensorflow as tf
from hdfs_native import Client, WriteOptions
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

parser = argparse.ArgumentParser()
for name in ("data-dir", "job-dir", "train-steps", "eval-batch-size", "train-batch-size", "num-gpus"):
    parser.add_argument(f"--{name}")
parser.add_argument("--sync", action="store_true")
args = parser.parse_args()
config = json.loads(os.environ.get("TF_CONFIG", "{}"))
task = config.get("task", {"type": "master", "index": 0})
print("task", task, "environment", config.get("environment"))
model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
model.compile("sgd", "mse")
model.fit(tf.ones([32, 8]), tf.ones([32, 10]), verbose=0)
if task["type"] == "ps":
    while True:
        signal.pause()
client = Client()
print("files", [file.path for file in client.list_status(args.data_dir.removeprefix("hdfs://"), True)])
if task["type"] == "master":
    loss = Summary(value=[Summary.Value(tag="loss", simple_value=0.5)])
    path = f"{args.job_dir.removeprefix('hdfs://')}/events.out.tfevents.1"
    with client.create(path, WriteOptions(overwrite=True, create_parent=True)) as file:
        RecordWriter(file).write(Event(step=1, wall_time=1.0, summary=loss).SerializeToString())
