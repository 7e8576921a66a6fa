"""A subclassed Keras model of several inputs and outputs, for records that are dictionaries; runs with TensorFlow and with PyTorch."""

from typing import ClassVar

import keras

from trainmaster.zoo import Mode
from trainmaster.zoo.callbacks import LearningRateScheduler, MaxStepsStopping, SavedModelExporter

EXPORTED: list[str] = []  # where the callback exports to


@keras.saving.register_keras_serializable("tests")
class Wide(keras.Model):
    def __init__(self, units: int = 4, **options):
        super().__init__(**options)
        self.units = units
        self.hidden = keras.layers.Dense(units, "relu", kernel_initializer=keras.initializers.GlorotUniform(1))
        self.out = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2))

    def call(self, inputs, training=False):
        both = keras.ops.concatenate([inputs["age"], inputs["pay"]], 1)
        logits = self.out(self.hidden(both))
        return {"logits": logits, "probabilities": keras.ops.sigmoid(logits)}

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def custom_model(units=4):
    return Wide(units)


def loss(labels, predictions):
    logits, probabilities = predictions["logits"], predictions["probabilities"]
    crossed = keras.losses.binary_crossentropy(keras.ops.reshape(labels, (-1, 1)), logits, from_logits=True)
    return {"crossed": crossed, "small": 0.0 * keras.ops.mean(probabilities)}


def wrong_loss(labels, predictions):
    return keras.ops.concatenate([predictions["logits"]] * 2, 1)


def optimizer():
    return keras.optimizers.SGD(0.1)


def feed(dataset, mode, metadata):
    def parse(record):
        def column(name):
            return keras.ops.reshape(keras.ops.cast(record[name], "float32"), (1,))

        features = {"age": column("age") / 100.0, "pay": column("pay")}
        return features if mode == Mode.PREDICTION else (features, keras.ops.cast(record["rich"], "float32"))

    return dataset.map(parse)


def repeating_feed(dataset, mode, metadata):
    return feed(dataset, mode, metadata).repeat()


def caching_feed(dataset, mode, metadata):
    return feed(dataset, mode, metadata).cache()


def eval_metrics_fn():
    def mean_label(labels, predictions):
        return labels

    return {"probabilities": {"auc": keras.metrics.AUC()}, "logits": {"mean_label": mean_label}}


class Tell(keras.callbacks.Callback):
    """Note what it is called with."""

    calls: ClassVar[list] = []

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(["epoch", epoch, sorted(logs)])

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(
            ["step", batch, round(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)), 4)]
        )


def callbacks():
    exporters = [SavedModelExporter(EXPORTED[0])] if EXPORTED else []
    return [LearningRateScheduler(lambda step: 0.1 / (1 + step)), MaxStepsStopping(5), Tell(), *exporters]


def no_callbacks():
    return []


class PredictionOutputsProcessor:
    seen: ClassVar[list] = []

    def process(self, predictions, worker_id):
        self.seen.append([worker_id, len(predictions["logits"])])


class Numbers:
    """A reader of one's own, of ElasticDL's older form: 40 records in 4 shards."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def create_shards(self):
        return {f"part-{number}": (number * 10, 10) for number in range(4)}

    def read_records(self, task):
        for number in range(task.start, task.end):
            yield {"age": number, "pay": number / 40, "rich": int(number >= 20)}


def own_reader(data_origin, records_per_task=None, fails=False):
    assert records_per_task % 8 == 0, data_origin
    return Numbers(fails)
