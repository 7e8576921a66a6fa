"""Handwritten digits of 28 x 28 pixels: two convolutions, with PyTorch alone."""

import numpy as np
import torch
from torch import nn

from trainmaster.zoo import Mode


def custom_model():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.BatchNorm2d(64), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(64 * 12 * 12, 10),
    )  # fmt: skip


def loss(labels, predictions):
    return nn.functional.cross_entropy(predictions, labels)


def optimizer(parameters, lr=1e-3):
    return torch.optim.Adam(parameters, lr)


def feed(dataset, mode, metadata):
    def parse(record):
        numbers = np.frombuffer(record, np.uint8)
        pixels = numbers[1:].reshape(1, 28, 28).astype(np.float32) / 255
        return pixels if mode == Mode.PREDICTION else (pixels, np.int64(numbers[0]))

    dataset = dataset.map(parse)
    return dataset.shuffle(1024, seed=0) if mode == Mode.TRAINING else dataset


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: (predictions.argmax(1) == labels).float()}
