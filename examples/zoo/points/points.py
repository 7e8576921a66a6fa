"""Points of the plane inside or outside of a circle: a small PyTorch model in the form of a model file.

    tm train --model_zoo . --model_def points.points.custom_model --training_data data/train --num_epochs 8 \
        --distribution_strategy Local --output model
"""

import torch
from torch import nn


def custom_model(width=32):
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))


def loss(labels, predictions):
    return nn.functional.cross_entropy(predictions, labels)


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


def feed(dataset, mode, metadata):
    """Make pairs (features, label) of rows of text: x, y, label. Rows for prediction need no label."""

    def parsed(row):
        point = [float(row[0]), float(row[1])]
        return point if mode == "prediction" else (point, int(row[2]))

    records = dataset.map(lambda row: parsed(row))
    return records.shuffle(1000, seed=1) if mode == "training" else records


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: (predictions.argmax(dim=1) == labels).float()}
