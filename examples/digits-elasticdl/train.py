"""Train a small network on handwritten digits by ElasticDL's API: the form of its `model_zoo/mnist/mnist_pytorch.py`.

    python ../digits/data.py                                                       # once
    PYTHONPATH=$(python -m trainmaster.elasticdl.alias) python train.py            # alone
    tm run job.yaml                                                                # one to three workers

The imports are ElasticDL's own.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from elasticai_api.common.data_shard_service import RecordIndexService
from elasticai_api.pytorch.controller import PyTorchAllReduceController
from elasticai_api.pytorch.optimizer import DistributedOptimizer
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

DATA = Path(__file__).parent.parent / "digits" / "data"


class Digits(Dataset):
    """The digits of some files. With a service, the next record of the job is read, whichever is asked for."""

    def __init__(self, lines, service=None):
        self.lines, self.service = lines, service

    def __len__(self):
        return sys.maxsize if self.service else len(self.lines)

    def __getitem__(self, index):
        if self.service:
            index = self.service.fetch_record_index()
        label, *pixels = map(float, self.lines[index].split(","))
        return torch.tensor(pixels) / 16, int(label)


def lines_of(place):
    return [line for path in sorted(Path(place).glob("*.csv")) for line in path.read_text().splitlines()]


def train_one_batch(model, optimizer, pixels, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(pixels), labels)
    loss.backward()
    optimizer.step()
    return loss


def accuracy(model, digits):
    with torch.no_grad():
        pixels, labels = next(iter(DataLoader(digits, batch_size=len(digits))))
        return float((model(pixels).argmax(1) == labels).float().mean())


def train(args):
    lines = lines_of(args.training_data)
    service = RecordIndexService(
        batch_size=args.batch_size, dataset_size=len(lines), num_epochs=args.num_epochs, shuffle=True
    )
    loader = DataLoader(Digits(lines, service), batch_size=args.batch_size, num_workers=1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    optimizer = DistributedOptimizer(optimizer, fixed_global_batch_size=True)
    scheduler = StepLR(optimizer, step_size=5, gamma=0.5)
    controller = PyTorchAllReduceController(service)
    controller.set_broadcast_model(model)
    controller.set_broadcast_optimizer(optimizer)
    elastic_train_one_batch = controller.elastic_run(train_one_batch)
    epoch = 0
    with controller.scope():
        for pixels, labels in loader:
            loss = elastic_train_one_batch(model, optimizer, pixels, labels)
            if controller.get_current_epoch() > epoch:
                epoch = controller.get_current_epoch()
                scheduler.last_epoch = epoch - 1
                scheduler.step()
                print(f"epoch {epoch}: loss {loss:.4f}", flush=True)
    result = accuracy(model, Digits(lines_of(args.validation_data)))
    print(f"{result:.4f} of the held-out digits read rightly", flush=True)
    place = Path(args.output)
    place.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), place / "model.pt")  # all workers have the same parameters
    (place / "result.json").write_text(json.dumps({"accuracy": result}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--num_epochs", type=int, default=10)
    parser.add_argument("--learning_rate", type=float, default=0.1)
    parser.add_argument("--training_data", default=str(DATA / "train"))
    parser.add_argument("--validation_data", default=str(DATA / "test"))
    parser.add_argument("--output", default="model")
    train(parser.parse_args())
