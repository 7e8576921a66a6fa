"""PyTorch's embedding modules with a table. Importing this module imports torch.

A module has no parameter. Its table is named by its path in the model (`field.user`), once the worker program has found it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...ps.initializers import Normal
from ...ps.specification import TableSpec
from ..errors import BadModel
from .durations import seconds_of
from .lookups import OTHER_IDS, OwnRows, is_trained_elsewhere, lookup_in_force


class _Table(torch.nn.Module):
    """The table of a module. `num_embeddings`: ids are below it; None: any that are not negative.

    `initializer`: one of `ps.initializers`. Equal seeds give equal rows in tables of one name. `evict_unused`: a row that was in no batch
    for so long ("7d") is removed from the servers, and begins anew where it comes again.
    """

    weight: torch.nn.Parameter | None

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        *,
        initializer: Any = None,
        seed: int = 0,
        evict_unused: str | float | None = None,
    ) -> None:
        super().__init__()
        if embedding_dim < 1 or (num_embeddings is not None and num_embeddings < 1):
            raise ValueError(
                f"the dimensions of an embedding must be at least 1, and are {num_embeddings} and {embedding_dim}"
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        unused = seconds_of(evict_unused)
        self.spec = TableSpec(embedding_dim, initializer or Normal(0.0, 1.0), num_embeddings, seed, unused)
        self.name = type(self).__name__.lower()
        self.own = OwnRows(self)
        self.register_parameter("weight", None)

    def take_weights(self, rows: Any) -> None:
        """Have the rows in a parameter `weight` from now on: those given, or zeros that are to be loaded."""
        assert self.num_embeddings is not None
        if self.weight is None:
            self.weight = torch.nn.Parameter(torch.zeros(self.num_embeddings, self.embedding_dim))
        if rows is not None:
            self.weight.data.copy_(torch.as_tensor(rows))

    def leave_weights(self) -> None:
        """Have the rows in a table again."""
        self.weight = None

    def _rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids of any shape."""
        if self.weight is not None:
            return torch.nn.functional.embedding(ids, self.weight)
        flat = ids.reshape(-1).to(torch.int64)
        rows = look_up(self.name, self.embedding_dim, flat, self.own, self.training)
        return rows.reshape(*ids.shape, self.embedding_dim)


class Embedding(_Table):
    """Give the rows of ids of a table, (*ids.shape, embedding_dim): `torch.nn.Embedding` with a table."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self._rows(ids)


class EmbeddingBag(_Table):
    """Combine the rows of each bag, (bags, embedding_dim): `torch.nn.EmbeddingBag` with a table.

    Ids are (bags, n); or (n,), where `offsets`, (bags,), say with which id each bag begins. `mode`: sum, mean, or sqrtn (the sum /
    sqrt(count)). A bag without ids has zeros.
    """

    def __init__(self, num_embeddings: int | None, embedding_dim: int, mode: str = "mean", **options: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, **options)
        if mode not in ("sum", "mean", "sqrtn"):
            raise ValueError(f"the mode of an embedding bag must be sum, mean or sqrtn, and is {mode!r}")
        self.mode = mode

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        if offsets is None:
            return self._scaled(self._rows(ids).sum(-2), torch.tensor(float(ids.shape[-1]), device=ids.device))
        ends = torch.cat([offsets[1:], offsets.new_tensor([len(ids)])])
        bags = torch.repeat_interleave(torch.arange(len(offsets), device=ids.device), ends - offsets)
        rows = self._rows(ids)
        total = rows.new_zeros(len(offsets), self.embedding_dim).index_add(0, bags, rows)
        return self._scaled(total, (ends - offsets).to(rows.dtype).unsqueeze(-1))

    def _scaled(self, total: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        if self.mode == "sum":
            return total
        counts = counts.clamp(min=1)
        return total / (counts if self.mode == "mean" else counts.sqrt())


def look_up(name: str, dimension: int, ids: torch.Tensor, own: OwnRows, training: bool) -> torch.Tensor:
    """Return the rows of ids, (n,), by the lookup in force, or those that the module has itself."""
    lookup = lookup_in_force()
    if lookup is not None:
        rows: torch.Tensor = lookup.rows(name, dimension, ids)
        return rows
    if training and torch.is_grad_enabled():
        raise is_trained_elsewhere(name)
    return torch.from_numpy(own.pull(ids.cpu().numpy())).to(ids.device)


def zeros(ids: torch.Tensor, dimension: int) -> torch.Tensor:
    return torch.zeros(len(ids), dimension, device=ids.device)


def take(distinct: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the rows of ids, (n,), that all are among the distinct ones, which ascend."""
    places = torch.searchsorted(distinct, ids)
    if ids.numel() and (int(places.max()) >= len(distinct) or not torch.equal(distinct[places], ids)):
        raise BadModel(OTHER_IDS, mend="look up the same ids whether the model trains or not")
    return rows.index_select(0, places)


class Moved:
    """A `torch.nn.Embedding` whose parameter was dropped for a table. It stays the same object."""

    def __init__(self, module: torch.nn.Embedding, name: str, spec: TableSpec) -> None:
        self.module, self.name, self.spec = module, name, spec
        self.own = OwnRows(self)
        del module.weight
        module.register_parameter("weight", None)
        vars(module)["forward"] = self._forward

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        flat = ids.reshape(-1).to(torch.int64)
        rows = look_up(self.name, self.spec.dimension, flat, self.own, self.module.training)
        return rows.reshape(*ids.shape, self.spec.dimension)

    def take_weights(self, rows: Any) -> None:
        """Give the module its parameter back, with these rows."""
        vars(self.module).pop("forward", None)
        self.module.weight = torch.nn.Parameter(torch.as_tensor(rows).clone())


def is_plain(module: torch.nn.Module) -> bool:
    """Tell whether a module is PyTorch's embedding, and does nothing to its rows that a table does not do."""
    return type(module) is torch.nn.Embedding and not (
        module.padding_idx is not None or module.max_norm is not None or module.scale_grad_by_freq or module.sparse
    )


def bytes_of(module: torch.nn.Embedding) -> int:
    numbers: int = math.prod(module.weight.shape)
    return 4 * numbers
