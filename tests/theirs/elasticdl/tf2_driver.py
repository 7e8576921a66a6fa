"""Call train() of ElasticDL's mnist_train_tfv2.py, which no program of theirs calls: tf2_driver.py FOLDER.

Horovod is not installed: its tape is the identity.
"""

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf
from elasticai_api.io.recordio_reader import RecordIOReader
from elasticai_api.tensorflow.controller import create_elastic_controller

horovod, tape = types.ModuleType("horovod"), types.ModuleType("horovod.tensorflow")
horovod.tensorflow, tape.DistributedGradientTape = tape, lambda value: value
sys.modules |= {"horovod": horovod, "horovod.tensorflow": tape}
from model_zoo.mnist import mnist_train_tfv2 as program  # noqa: E402  (it imports horovod)

reader = RecordIOReader([str(path) for path in sorted(Path(sys.argv[1]).iterdir())])
controller = create_elastic_controller(batch_size=64, num_epochs=4, dataset_size=1437, shuffle=True)


def records() -> Iterator[bytes]:
    while True:
        try:
            index = controller.data_shard_service.fetch_record_index()
        except StopIteration:
            return
        yield next(reader.read_records(index, index + 1))


options = tf.data.Options()
options.experimental_optimization.inject_prefetch = False  # no record is read before its batch is due
dataset = program.feed(tf.data.Dataset.from_generator(records, tf.string), program.Mode.TRAINING, None)
with controller.scope():
    program.train(dataset.batch(64).with_options(options), controller)
print("trained")
