"""ElasticDL's elastic controllers for PyTorch, alone: what a step is, what the program's own calls do in it, and where it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from trainmaster.elasticdl.data_shards import RecordIndexService
from trainmaster.elasticdl.torch_controller import DDPController, create_elastic_controller
from trainmaster.elasticdl.torch_optimizer import DistributedOptimizer
from trainmaster.zoo.errors import BadModel


class Bits(Dataset[torch.Tensor]):
    """The bits of each record's number."""

    def __init__(self, service: RecordIndexService) -> None:
        self.service = service

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, place: int) -> torch.Tensor:
        return bits(self.service.fetch_record_index())


def bits(record: int) -> torch.Tensor:
    return torch.tensor([float(record >> bit & 1) for bit in range(6)])


def loss_of(model: Any, data: torch.Tensor) -> torch.Tensor:
    return (model(data)[:, 0] - data.sum(1)).square().mean()


def train_one_batch(model: Any, optimizer: Any, data: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = loss_of(model, data)
    loss.backward()
    optimizer.step()
    return loss.item()


def linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(6, 1)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("TRAINMASTER_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("batches", [1, 3, 4])
def test_a_step_has_the_mean_of_all_its_batches(batches: int) -> None:
    controller = create_elastic_controller(batch_size=8, num_epochs=2, dataset_size=64)
    model = linear()
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), fixed_global_batch_size=True, global_batch_num_per_step=batches
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    controller.set_broadcast_model(model)
    controller.set_broadcast_optimizer(optimizer)
    train = controller.elastic_run(train_one_batch)
    with controller.scope():
        for data in DataLoader(Bits(controller.data_shard_service), 8):  # type: ignore[arg-type]
            train(model, optimizer, data)
    expected, together = linear(), torch.stack([bits(record % 64) for record in range(128)]).split(8)
    plain = torch.optim.SGD(expected.parameters(), 0.1)
    for first in range(0, 16, batches):
        plain.zero_grad()
        part = together[first : first + batches]
        for data in part:
            (loss_of(expected, data) / len(part)).backward()
        plain.step()
    torch.testing.assert_close(model.state_dict(), expected.state_dict())
    assert (controller.global_completed_batch_num, controller.get_current_epoch()) == (16, 2)
    before = model.weight.clone()  # type: ignore[operator]
    train_one_batch(model, optimizer, together[0])
    assert not torch.equal(before, model.weight), "behind the scope the optimizer is the program's own again"  # type: ignore[arg-type]
    scheduler.step()


def test_a_ddp_controller_makes_the_optimizer_once() -> None:
    service = RecordIndexService(batch_size=8, num_epochs=1, dataset_size=32)
    controller, made = DDPController(service), []

    def make(model: Any) -> Any:
        made.append(torch.optim.SGD(model.parameters(), 0.1))
        return made[-1]

    model = linear()
    with pytest.raises(BadModel, match="call elastic_DDP"):
        controller.get_rank()
    with controller.scope():
        for number, data in enumerate(DataLoader(Bits(service), 8)):
            controller.elastic_DDP(model, make)
            controller.train_one_batch(train_one_batch, controller.model, controller.optimizer, data)
            assert controller.is_process_group_reinit() == (number == 0)
    assert (controller.model, [controller.optimizer]) == (model, made)
    assert (controller.get_rank(), controller.get_world_size(), controller.get_local_rank()) == (0, 1, 0)
    assert controller.global_completed_batch_num == 4
    controller.set_resume_epoch(3)
    assert controller.get_current_epoch() == 4


def test_a_batch_that_fails_adds_nothing_and_can_be_tried_again() -> None:
    controller = create_elastic_controller(batch_size=8, dataset_size=8)
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    controller.set_broadcast_model(model)
    controller.set_broadcast_optimizer(optimizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def fail(data: torch.Tensor) -> None:
        loss_of(model, data).backward()
        raise KeyError("no such label")

    data = torch.stack([bits(record) for record in range(8)])
    with pytest.raises(KeyError, match="no such label"):
        controller.elastic_run(fail)(data)
    torch.testing.assert_close(model.state_dict(), before)
    controller.elastic_run(train_one_batch)(model, optimizer, data)
    expected = linear()
    train_one_batch(expected, torch.optim.SGD(expected.parameters(), 0.1), data)
    torch.testing.assert_close(model.state_dict(), expected.state_dict())


def test_what_a_controller_lacks_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    controller = create_elastic_controller(batch_size=8, dataset_size=8)
    with pytest.raises(BadModel, match="call set_broadcast_model"):
        controller.elastic_run(train_one_batch)(None, None, None)
    optimizer = torch.optim.SGD(linear().parameters(), 0.1)
    with pytest.raises(BadModel, match="leave out compression and op"):
        DistributedOptimizer(optimizer, compression="fp16")
    monkeypatch.setenv("TRAINMASTER_JOB", "digits-1")
    with pytest.raises(BadModel, match="WORKER_NUM is not set"):
        DistributedOptimizer(optimizer, fixed_global_batch_size=True)
    monkeypatch.setenv("WORKER_NUM", "3")
    assert DistributedOptimizer(optimizer, fixed_global_batch_size=True).global_batch_num_per_step == 3
