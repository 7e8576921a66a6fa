"""A small model of clicks in PyTorch: the ids a, b and c of a CSV or a table, and whether it was clicked."""

import contextlib
import os
import time

import torch

from trainmaster import runtime
from trainmaster.zoo import Mode
from trainmaster.zoo.embeddings.torch_modules import Embedding, EmbeddingBag

IDS = 40


class Clicks(torch.nn.Module):
    """`kind`: tables of ours, or "moved": one of PyTorch's, which is to be moved, beside one of ours without a bound."""

    def __init__(self, kind: str = "tables") -> None:
        super().__init__()
        torch.manual_seed(1)
        self.vectors = torch.nn.Embedding(IDS, 8) if kind == "moved" else Embedding(IDS, 8)
        self.weights = EmbeddingBag(None if kind == "moved" else IDS, 1, "sum")
        self.dense = torch.nn.Linear(24, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weights(ids) + self.dense(self.vectors(ids).flatten(1))


custom_model = Clicks


def loss(labels: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, labels)


def steep_loss(labels: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Return a loss that is finite, and whose gradient is not: from the sixth call on, once there is the file KEPT, and in later attempts
    from the first.
    """
    steep_loss.calls = getattr(steep_loss, "calls", 0) + 1  # type: ignore[attr-defined]
    is_steep = runtime.task().attempt > 1 or steep_loss.calls > 5  # type: ignore[attr-defined]
    while is_steep and not os.path.exists(os.environ.get("KEPT", "/")):
        time.sleep(0.02)
    return loss(labels, outputs) + ((outputs * 0).abs().sqrt().sum() if is_steep else 0)


def optimizer(parameters):  # type: ignore[no-untyped-def]
    return torch.optim.Adagrad(parameters, lr=0.1)


def feed(dataset, mode, metadata):  # type: ignore[no-untyped-def]
    def parse(record):  # type: ignore[no-untyped-def]
        numbers = torch.tensor([int(text) for text in (record.values() if isinstance(record, dict) else record)])
        return numbers[:3] if mode == Mode.PREDICTION else (numbers[:3], numbers[3:4].float())

    return dataset.map(parse)


def eval_metrics_fn():  # type: ignore[no-untyped-def]
    return {"accuracy": lambda labels, outputs: ((outputs > 0) == (labels > 0.5)).float()}


class Dies:
    """End the first process that comes to a step: DIES is that step and a file, which is made then."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        step, _, mark = os.environ.get("DIES", "").partition(" ")
        if mark and batch >= int(step):
            with contextlib.suppress(FileExistsError), open(mark, "x"):
                os._exit(3)


def callbacks():  # type: ignore[no-untyped-def]
    return [Dies()]
