"""A PyTorch module. Importing this module imports torch."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from ..data.torch_feed import TorchFeed
from ..errors import BadModel
from ..model_file import ModelFile, place_of, takes_parameters
from . import losses
from .torch_tables import FirstRows, TorchTables, load_beside_tables, own_modules, read_unbounded, to_weights

MODEL_FILE, PROGRAM = "model.pt", "model.pt2"


class TorchModel:
    """A module, and the optimizer that trains it (None where it is not trained). It is on the GPU where there is one."""

    kind = "torch"
    weights_files = (".pt", ".pth")
    model_files = (MODEL_FILE,)
    index_errors = (IndexError,)  # of an embedding that has no row for an id

    def __init__(self, model: torch.nn.Module, parts: ModelFile) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model, self.parts = model.to(self.device), parts
        self.optimizer: Any = None
        self._example: Any = None  # features of one batch
        self.tables: Any = None  # TorchTables, where servers have its parameters
        self.first_rows: FirstRows | None = None  # of its tables, where weights were loaded

    # -- its data --

    def feed(self, mode: str, metadata: Any, size: int, record: Any, types: Any = None) -> Any:
        """Return the feed of batches of `size` examples."""
        return TorchFeed(self.parts.feed, mode, metadata, size)

    # -- training --

    @property
    def is_built(self) -> bool:
        """Tell whether the model has weights: lazy layers have none."""
        return not any(
            isinstance(weight, torch.nn.parameter.UninitializedParameter) for weight in self.model.parameters()
        )

    def build(self, features: Any) -> None:
        """Make the weights of lazy layers by a first batch."""
        self.note_example(features)
        self.outputs(features)

    @property
    def has_example(self) -> bool:
        """Tell whether a batch has shown the form of the input, by which a program is exported."""
        return self._example is not None

    def note_example(self, features: Any) -> None:
        """Take the form of the input from a batch."""
        self._example = self._placed(features)

    def prepare_training(self) -> None:
        """Make the optimizer, of a model that is built."""
        place = place_of(self.parts.path, self.parts.optimizer)
        if not takes_parameters(self.parts.optimizer):
            mend = "write def optimizer(parameters): return torch.optim.SGD(parameters, lr=0.1)"
            raise BadModel("the optimizer of a PyTorch model must take its parameters", place=place, mend=mend)
        optimizer = self.parts.optimizer(list(self.model.parameters()) or [torch.nn.Parameter(torch.zeros(0))])
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise BadModel(f"the optimizer is a {type(optimizer).__name__}, and one of PyTorch is due", place=place)
        self.optimizer = optimizer
        vars(self.model)["optimizer"] = optimizer  # for callbacks

    def has_tables(self) -> bool:
        """Tell whether the model has embeddings with tables of their own accord."""
        return bool(own_modules(self.model))

    def use_tables(self, moved: int | Collection[str] | None, say: Any) -> None:
        """Have its parameters and tables kept by a client of servers from now on. `moved`: see `KerasTables`."""
        self.tables = TorchTables(self, moved, say)

    def leave_tables(self) -> None:
        """Put parameters in place of tables, to be loaded: for a model that is not trained."""
        to_weights(self.model)

    def check_loss(self, features: Any, labels: Any, size: int) -> None:
        """Raise BadModel where the loss has a wrong shape for a batch."""
        losses.check(self.parts.loss(self._placed(labels), self.outputs_of_model(features)), size, self.parts)

    def step(self, features: Any, labels: Any) -> tuple[float, dict[str, float]]:
        """Train with a batch. Return the loss before it, and its parts by name where there are several."""
        self.optimizer.zero_grad(set_to_none=True)
        result = self.backward(features, labels)
        self.optimizer.step()
        return result

    def backward(self, features: Any, labels: Any) -> tuple[float, dict[str, float]]:
        """Compute the gradients of a batch. Return its loss, and the parts of it."""
        self.model.train()
        value = self.parts.loss(self._placed(labels), self.model(self._placed(features)))
        total, parts = losses.total(value, torch.mean)
        total.backward()
        return float(total.detach()), {name: float(part.detach()) for name, part in parts.items()}

    def diverged_parameter(self) -> str:
        """Return the name of a parameter that is not finite; "" where all are."""
        trained = self.model.named_parameters()
        return next((name for name, value in trained if not bool(torch.isfinite(value).all())), "")

    # -- predicting --

    def outputs(self, features: Any) -> Any:
        """Return the model's outputs for a batch, as tensors."""
        return self.outputs_of_model(features) if self.tables is None else self.tables.outputs(features)

    def outputs_of_model(self, features: Any) -> Any:
        """Return them with the rows that the lookup in force gives."""
        self.model.eval()
        with torch.no_grad():
            return self.model(self._placed(features))

    plain_outputs = outputs_of_model

    @contextlib.contextmanager
    def looking_at_ids(self, look: Callable[[str, int, Any], None]) -> Iterator[None]:
        """Have look(name, rows, ids) called with the ids that each of the model's embeddings gets."""

        def hook(name: str) -> Any:
            return lambda module, inputs: look(name, module.num_embeddings, inputs[0].cpu().numpy())

        plain = torch.nn.Embedding | torch.nn.EmbeddingBag
        named = [(name, module) for name, module in self.model.named_modules() if isinstance(module, plain)]
        hooks = [module.register_forward_pre_hook(hook(name)) for name, module in named]
        try:
            yield
        finally:
            for handle in hooks:
                handle.remove()

    @staticmethod
    def numbers(tensors: Any) -> Any:
        """Return tensors as NumPy arrays."""
        return _mapped(lambda tensor: tensor.detach().cpu().numpy(), tensors)

    def _placed(self, tensors: Any) -> Any:
        return _mapped(lambda tensor: tensor.to(self.device), tensors)

    # -- keeping --

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint must have."""
        return {
            "kind": self.kind, "model": self.model, "optimizer": self.optimizer, "seed": torch.get_rng_state(),
            "example": None if self._example is None else _blank(self._example),
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Take what a checkpoint has: of the optimizer only where there is one. Raises BadModel where it is another model's."""
        try:
            self.model.load_state_dict(state["model"])
            if self.optimizer is not None:
                self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise BadModel(f"the checkpoint is of another model or optimizer: {error}") from None
        torch.set_rng_state(state["seed"])
        if self._example is None and state.get("example") is not None:
            self.note_example(state["example"])

    def load_weights(self, path: str) -> None:
        """Take the weights of a file with a state dict. Raises BadModel."""

        def load(state: Any) -> None:
            self.model.load_state_dict(state)
            read_unbounded(self.model, os.path.dirname(path))

        self._load(path, load)

    def load_before_tables(self, path: str) -> None:
        """Take the weights of a file before `use_tables`, which has the tables begin with their rows. Raises BadModel."""

        def load(state: Any) -> None:
            self.first_rows = load_beside_tables(self.model, state, os.path.dirname(path))

        self._load(path, load)

    def _load(self, path: str, load: Callable[[Any], None]) -> None:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # noqa: BLE001  of pickle, zip files, and PyTorch's own, which go on for many lines
            reason = str(error).partition(". ")[0].partition("\n")[0]
            raise BadModel(
                f"{path} is damaged, or is not a file of weights that torch.save has written: {reason}",
                place="--checkpoint_dir_for_init",
            ) from None
        try:
            load(state)
        except BadModel:
            raise
        except Exception as error:  # noqa: BLE001  of PyTorch's own
            raise BadModel(
                f"the weights of {path} do not fit the model: {error}", place="--checkpoint_dir_for_init"
            ) from None

    def export(self, directory: str) -> list[str]:
        """Write the model's state dict, and it as a program of `torch.export`, into a directory. Return the paths.

        A path is there once it is whole. A model that `torch.export` cannot take has its state dict alone, and a line says why.
        """
        os.makedirs(directory, exist_ok=True)
        paths = [os.path.join(directory, MODEL_FILE)]
        if self.tables is not None:
            self.tables.fill()
            paths += self.tables.write_unbounded(directory)
        draft = os.path.join(directory, f".part-{MODEL_FILE}")
        torch.save(self.model.state_dict(), draft)
        os.replace(draft, paths[0])
        if len(paths) > 1:
            return paths
        if self._example is None:
            print(
                "the model is exported as its state dict alone: this worker has had no batch, by which torch.export could trace it:"
                " give --validation_data",
                flush=True,
            )
            return paths
        draft, path = os.path.join(directory, f".part-{PROGRAM}"), os.path.join(directory, PROGRAM)
        self.model.eval()
        shapes = (_mapped(lambda tensor: {0: torch.export.Dim.AUTO}, self._example),)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.export.save(torch.export.export(self.model, (self._example,), dynamic_shapes=shapes), draft)
        except Exception as error:  # noqa: BLE001  whatever the model's own code raises when it is traced
            first = str(error).strip().partition("\n")[0]
            print(f"the model is exported as its state dict alone: torch.export cannot take it: {first}", flush=True)
            return paths
        os.replace(draft, path)
        return [*paths, path]


def _blank(features: Any) -> Any:
    """Return zeros in the form of a batch of two, which a checkpoint can have; None where not all parts are plain tensors."""

    def is_plain(part: Any) -> bool:
        if type(part) in (dict, tuple, list):
            return all(map(is_plain, part.values() if type(part) is dict else part))
        return isinstance(part, torch.Tensor) and part.layout == torch.strided

    def blank(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros((2, *tensor.shape[1:]) if tensor.dim() else (), dtype=tensor.dtype)

    return _mapped(blank, features) if is_plain(features) else None


def _mapped(function: Any, tensors: Any) -> Any:
    """Return a structure with function(tensor) for each tensor."""
    if isinstance(tensors, dict):
        return {key: _mapped(function, value) for key, value in tensors.items()}
    if isinstance(tensors, tuple | list):
        return type(tensors)(_mapped(function, value) for value in tensors)
    return function(tensors) if isinstance(tensors, torch.Tensor) else tensors
