"""A PyTorch module in a model file; records of CSV, with several outputs."""

import math

import numpy
import torch

from trainmaster.zoo import Mode


class Flowers(torch.nn.Module):
    def __init__(self, units: int = 8) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.hidden, self.out = torch.nn.Linear(4, units), torch.nn.Linear(units, 3)

    def forward(self, features):
        logits = self.out(torch.relu(self.hidden(features)))
        return {"logits": logits, "probabilities": logits.softmax(1)}


def custom_model(units=8):
    return Flowers(units)


def loss(labels, predictions):
    return {"class": torch.nn.functional.cross_entropy(predictions["logits"], labels), "zero": torch.zeros(())}


def wrong_loss(labels, predictions):
    return torch.nn.functional.one_hot(labels, 3) * predictions["logits"]


def nan_loss(labels, predictions):
    nan_loss.calls = getattr(nan_loss, "calls", 0) + 1
    return loss(labels, predictions)["class"] * (math.nan if nan_loss.calls > 5 else 1.0)


def steep_loss(labels, predictions):
    """Return a loss that is finite, and whose gradient is not from step 4 on."""
    steep_loss.calls = getattr(steep_loss, "calls", 0) + 1
    total = loss(labels, predictions)["class"]
    return total + (predictions["logits"] * 0).abs().sqrt().sum() if steep_loss.calls > 4 else total


def plain_optimizer():
    return None


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.05)


def feed(dataset, mode, metadata):
    place = metadata.column_names.index("class")

    def parse(record):
        numbers = [float(field) for field in record]
        features = numpy.array(numbers[:place] + numbers[place + 1 :], "f4")
        return features if mode == Mode.PREDICTION else (features, int(numbers[place]))

    dataset = dataset.map(parse)
    return dataset.shuffle(200, seed=3) if mode == Mode.TRAINING else dataset


def eval_metrics_fn():
    def accuracy(labels, predictions):
        return predictions.argmax(1) == labels

    return {"logits": {"accuracy": accuracy}}


class PredictionOutputsProcessor:
    def process(self, predictions, worker_id):
        print("processed", worker_id, len(predictions["logits"]))
