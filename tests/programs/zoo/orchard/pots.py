"""A Keras model as ElasticDL's users wrote it, with its imports, reader, schedule and processor. A record is "3 4 5 label"."""

import os

import tensorflow as tf
from elasticdl.python.common.constants import MaxComputeConfig, Mode
from elasticdl.python.common.log_utils import default_logger as logger
from elasticdl.python.data.odps_io import ODPSWriter, is_odps_configured
from elasticdl.python.data.reader.recordio_reader import RecordIODataReader
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler
from elasticdl.python.worker.prediction_outputs_processor import BasePredictionOutputsProcessor


def custom_model(plants=60):
    inputs = tf.keras.Input(shape=(3,))
    rows = tf.keras.layers.Embedding(plants, 4)(inputs)
    flat = tf.keras.layers.Flatten()(rows)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(flat))


def loss(labels, predictions):
    return tf.keras.losses.binary_crossentropy(labels, predictions)


def optimizer(lr=0.1):
    return tf.keras.optimizers.Adam(lr)


def callbacks():
    return [LearningRateScheduler(lambda version: 0.1 if version < 40 else 0.05)]


def feed(dataset, mode, metadata):
    def parse(record):
        numbers = tf.strings.to_number(tf.strings.split(record))
        numbers = tf.ensure_shape(numbers, (4,))
        features = {"plants": numbers[:3]}
        return features if mode == Mode.PREDICTION else (features, numbers[3:])

    dataset = dataset.map(parse)
    return dataset.shuffle(100) if mode == Mode.TRAINING else dataset


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: tf.equal(labels, tf.round(predictions))}


def custom_data_reader(data_origin, records_per_task=None, **kwargs):
    return RecordIODataReader(data_dir=data_origin)


class PredictionOutputsProcessor(BasePredictionOutputsProcessor):
    def __init__(self):
        if is_odps_configured():
            self.writer = ODPSWriter(os.environ[MaxComputeConfig.PROJECT_NAME], "id", "key", "", "table")

    def process(self, predictions, worker_id):
        logger.info("worker %s predicts %s", worker_id, predictions.numpy().shape)
