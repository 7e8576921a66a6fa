"""A PyTorch module whose parameters and tables are kept by parameter servers: what a step computes. Importing this module imports torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy
import torch

from ...ps.initializers import Normal
from ...ps.specification import TableSpec
from ..embeddings import contents
from ..embeddings.contents import all_rows, present_rows, write_unbounded
from ..embeddings.initial import are_initial
from ..embeddings.lookups import Pulled, Recording, checked, distinct_of, looking_up
from ..embeddings.torch_modules import Embedding, EmbeddingBag, Moved, bytes_of, is_plain, take, zeros
from . import server_optimizers

Arrays = dict[str, Any]
FirstRows = dict[str, tuple[Any, Any]]  # ids and rows by table


def own_modules(model: torch.nn.Module) -> dict[str, Any]:
    """Return the modules that have a table of their own accord, by their paths, which become their names."""
    modules = {path: module for path, module in model.named_modules() if isinstance(module, Embedding | EmbeddingBag)}
    for path, module in modules.items():
        module.name = path
    return modules


def to_weights(model: torch.nn.Module) -> None:
    """Put parameters in place of those tables that have a bound, to be loaded."""
    for module in own_modules(model).values():
        if module.num_embeddings is not None:
            module.take_weights(None)


def read_unbounded(model: torch.nn.Module, directory: str) -> None:
    """Give the modules without a bound the rows in files of an exported model. Raises BadModel."""
    for name, module in own_modules(model).items():
        if module.num_embeddings is None:
            module.own.load(*contents.read_unbounded(directory, name))


class TorchTables:
    """The parameters and tables of a module that is built. See `keras_tables.KerasTables`, which has the same form."""

    def __init__(self, model: Any, moved: int | Collection[str] | None, say: Callable[[str], None]) -> None:
        self._model = model
        self.first_rows: FirstRows | None = model.first_rows
        others = _moved(model.model, moved, self.first_rows, say) if moved is not None else {}
        self._modules: dict[str, Any] = {**own_modules(model.model), **others}
        self.specs: dict[str, TableSpec] = {name: module.spec for name, module in self._modules.items()}
        self.source: Any = None
        self.snapshot: dict[str, tuple[Any, Any]] | None = None

    # -- parameters --

    def dense(self) -> Arrays:
        """Return the parameters that are trained, by name."""
        return {name: parameter.detach().cpu().numpy() for name, parameter in self._parameters().items()}

    def assign(self, values: Mapping[str, Any]) -> None:
        parameters = self._parameters()
        with torch.no_grad():
            for name, value in values.items():
                parameters[name].copy_(torch.from_numpy(value))

    def optimizer(self) -> tuple[dict[str, Any], float | None]:
        """Return the optimizer for servers, and no limit of the gradients' norm. Raises BadModel."""
        return server_optimizers.of_torch(self._model.optimizer), None

    def rate(self, step: int) -> float:
        """Return the learning rate of the next step."""
        return float(self._model.optimizer.param_groups[0]["lr"])

    def _parameters(self) -> dict[str, Any]:
        return {name: value for name, value in self._model.model.named_parameters() if value.requires_grad}

    # -- a step --

    def ids(self, features: Any) -> Arrays:
        """Return the distinct ids of each table in a batch, ascending. Raises BadModel for one that the table cannot have."""
        if not self.specs:
            return {}
        recording = Recording(zeros)
        with looking_up(recording):
            self._model.outputs_of_model(features)
        return {
            name: checked(name, self.specs[name], distinct_of(torch.cat(ids).cpu().numpy()))
            for name, ids in recording.ids.items()
        }

    def gradients(
        self, features: Any, labels: Any, ids: Arrays, rows: Arrays
    ) -> tuple[float, dict[str, float], Arrays, Arrays]:
        """Return the loss of a batch, its parts, and the gradients of parameters and of the rows of the distinct ids."""
        self._model.model.zero_grad(set_to_none=True)
        pairs = self._pairs(ids, rows)
        for _, tensor in pairs.values():
            tensor.requires_grad_()
        with looking_up(Pulled(pairs, take)):
            loss, parts = self._model.backward(features, labels)
        dense = {name: value.grad.cpu().numpy() for name, value in self._parameters().items() if value.grad is not None}
        of_rows = {name: tensor.grad.cpu().numpy() for name, (_, tensor) in pairs.items() if tensor.grad is not None}
        return loss, parts, dense, of_rows

    def outputs(self, features: Any) -> Any:
        """Return the model's outputs, as tensors, with the rows of the snapshot, or those that the tables have now."""
        ids = self.ids(features)
        rows = present_rows(self.source, self.snapshot, ids)
        with looking_up(Pulled(self._pairs(ids, rows), take)):
            return self._model.outputs_of_model(features)

    def _pairs(self, ids: Arrays, rows: Arrays) -> dict[str, tuple[Any, Any]]:
        device = self._model.device
        return {
            name: (torch.from_numpy(ids[name]).to(device), torch.from_numpy(rows[name]).to(device)) for name in rows
        }

    # -- the model without tables --

    def fill(self) -> None:
        """Give the modules their tables as parameters, whose rows are what `source` has."""
        for name, spec in self.specs.items():
            if spec.input_dim is not None:
                self._modules[name].take_weights(all_rows(self.source, name, spec))

    def write_unbounded(self, directory: str) -> list[str]:
        """Write the tables without a bound beside an exported model, and return the paths."""
        return write_unbounded(directory, self.source, self.specs)


def load_beside_tables(model: torch.nn.Module, state: Mapping[str, Any], directory: str) -> FirstRows:
    """Load a state dict, and tables without a bound from `directory`, into a model with tables, and return ids and rows of these."""
    to_weights(model)
    model.load_state_dict(state)
    read_unbounded(model, directory)
    first_rows = {}
    for name, module in own_modules(model).items():
        if module.num_embeddings is None:
            first_rows[name] = module.own.contents()
        else:
            first_rows[name] = numpy.arange(module.num_embeddings), module.weight.detach().cpu().numpy()
            module.leave_weights()
    return first_rows


def _moved(
    model: torch.nn.Module, chosen: int | Collection[str], first_rows: FirstRows | None, say: Callable[[str], None]
) -> dict[str, Moved]:
    """Give embeddings of PyTorch tables, and return these by path. Rows that were loaded are added to `first_rows`; None: none were."""
    moved = {}
    normal = Normal(0.0, 1.0)  # of torch.nn.Embedding
    for name, module in list(model.named_modules()):
        if not is_plain(module) or module.weight is None:
            continue
        if not (bytes_of(module) > chosen if isinstance(chosen, int) else name in chosen):
            continue
        rows = module.weight.detach().cpu().numpy()
        shared = sum(parameter is module.weight for _, parameter in model.named_parameters(remove_duplicate=False))
        if (
            shared > 1
            or not module.weight.requires_grad
            or not (first_rows is not None or not isinstance(chosen, int) or are_initial(rows, normal))
        ):
            say(
                f"the embedding {name} stays with the dense parameters: its rows are shared, not trained, or not those"
                " that torch.nn.Embedding begins with"
            )
            continue
        size = bytes_of(module)
        spec = TableSpec(module.embedding_dim, normal, module.num_embeddings)
        moved[name] = Moved(module, name, spec)
        if first_rows is not None:
            first_rows[name] = numpy.arange(len(rows)), rows
        if isinstance(chosen, int):
            say(f"the embedding {name} of {size:,} bytes is on the parameter servers")
    return moved
