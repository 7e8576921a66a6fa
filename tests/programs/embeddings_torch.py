"""Embedding modules with tables, of PyTorch: prints facts as JSON."""

import json
from typing import Any

import numpy
import torch

from trainmaster.zoo.embeddings.in_process import InProcess
from trainmaster.zoo.embeddings.torch_modules import Embedding, EmbeddingBag
from trainmaster.zoo.errors import BadModel
from trainmaster.zoo.model_file import ModelFile
from trainmaster.zoo.models import server_optimizers
from trainmaster.zoo.models.torch_model import TorchModel

facts: dict[str, Any] = {}
IDS = torch.tensor([[1, 2, 2], [0, 3, 1]])


def refusal(function: Any) -> str:
    try:
        function()
    except (BadModel, ValueError) as error:
        return str(error)
    return ""


def close(one: Any, other: Any) -> bool:
    return bool(numpy.allclose(one.detach().numpy(), other, atol=1e-6))


def modules() -> None:
    rows = Embedding(10, 4).eval()
    table = rows.own.pull(numpy.arange(10))
    facts["dense"] = close(rows(IDS), table[IDS])
    facts["negative"], facts["beyond"] = refusal(lambda: rows(IDS - 1)), refusal(lambda: rows(IDS + 8))
    facts["fit"] = refusal(lambda: rows.train()(IDS))
    for mode, scale in (("sum", 1), ("mean", 3), ("sqrtn", numpy.sqrt(3))):
        bag = EmbeddingBag(10, 4, mode).eval()
        own = bag.own.pull(numpy.arange(10))
        facts[mode] = close(bag(IDS), own[IDS].sum(1) / scale)
    bag = EmbeddingBag(10, 4, "mean").eval()
    own = bag.own.pull(numpy.arange(10))
    expected = numpy.stack([own[[5, 6]].mean(0), numpy.zeros(4), own[7]])
    facts["offsets"] = close(bag(torch.tensor([5, 6, 7]), torch.tensor([0, 2, 2])), expected)


class Model(torch.nn.Module):
    def __init__(self, has_tables: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.large = torch.nn.Embedding(200, 4)
        self.rows: Any = EmbeddingBag(10, 4, "sum") if has_tables else torch.nn.EmbeddingBag(10, 4, mode="sum")
        self.out = torch.nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.large(ids).sum(1) + self.rows(ids))
        return out


def training() -> None:
    """Rows get the gradients that PyTorch's own modules get; a moved module comes back as it was."""
    made = Model(has_tables=True)

    def optimizer(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1)

    parts = ModelFile("a.py", Model, lambda labels, outputs: ((outputs - labels) ** 2).mean(), optimizer)
    wrapped = TorchModel(made, parts)
    said: list[str] = []
    wrapped.use_tables(2000, said.append)
    wrapped.prepare_training()
    facts["moved"], tables = said, wrapped.tables
    facts["parameters"] = sorted(tables.dense())
    client = InProcess()
    client.define(tables.dense(), tables.specs, tables.optimizer()[0])
    tables.source = client
    ids = tables.ids(IDS)
    pulled = client.pull(rows=ids)
    before = tables.outputs(IDS)
    loss, _, dense, rows = tables.gradients(IDS, torch.ones(2, 1), ids, pulled.rows)
    plain = Model(has_tables=False)
    state = {name: torch.from_numpy(value.copy()) for name, value in tables.dense().items()}
    for name, count in (("large", 200), ("rows", 10)):
        state[f"{name}.weight"] = torch.from_numpy(client.pull(rows={name: numpy.arange(count)}).rows[name])
    plain.load_state_dict(state)
    facts["outputs"] = close(before, plain(IDS).detach().numpy())
    ((plain(IDS) - 1) ** 2).mean().backward()
    facts["gradients"] = all(
        close(dict(plain.named_parameters())[f"{name}.weight"].grad[ids[name]], rows[name]) for name in rows
    ) and close(plain.out.weight.grad, dense["out.weight"])
    client.push(pulled.version, dense, {name: (ids[name], gradient) for name, gradient in rows.items()})
    tables.assign(client.pull().dense)
    after = tables.outputs(IDS)
    facts["is better"] = bool(((after - 1) ** 2).mean() < loss)
    tables.fill()
    plain.load_state_dict(made.state_dict())
    facts["filled"] = close(plain(IDS), after.numpy())
    facts["is plain"] = close(made.eval()(IDS), after.numpy())


def optimizers() -> None:
    made, parameters = torch.optim, [torch.nn.Parameter(torch.zeros(2))]
    good = {
        "SGD": made.SGD(parameters, 0.1, momentum=0.9), "Adam": made.Adam(parameters, 0.1), "AdamW": made.AdamW(parameters, 0.1),
        "Adagrad": made.Adagrad(parameters, 0.1), "SparseAdam": made.SparseAdam(parameters, 0.1),
    }  # fmt: skip
    facts["optimizers"] = {name: server_optimizers.of_torch(optimizer) for name, optimizer in good.items()}
    bad = {"RMSprop": made.RMSprop(parameters), "decay": made.Adam(parameters, weight_decay=0.1)}
    facts["refused"] = {
        name: refusal(lambda optimizer=optimizer: server_optimizers.of_torch(optimizer))
        for name, optimizer in bad.items()
    }


modules()
training()
optimizers()
print(json.dumps(facts))
