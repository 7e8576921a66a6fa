"""The reader of a task's data: the model file's own, or one of ours."""

from __future__ import annotations

from typing import Any

from .data.custom_reader import CustomReader
from .data.records import Form, Whole, source_of, whole_source_of
from .errors import BadModel
from .model_file import ModelFile, place_of

_MINIBATCHES = 8  # of a shard of a custom reader: ElasticDL's num_minibatches_per_task


def reader_of(
    name: str, flags: dict[str, Any], parts: ModelFile, params: dict[str, Any], is_shared: bool
) -> tuple[Any, Any]:
    """Return the source of the shards of an input, over all epochs, and the form of its records. Raises BadModel.

    `params`: of the reader. `is_shared`: several workers read it together.
    """
    if parts.custom_data_reader is None:
        form = Form(params)
        return source_of(name, flags[f"{name}_data"], form, flags.get("num_epochs", 1)), form
    if is_shared:
        raise BadModel(
            "a custom_data_reader cannot share its records among workers: their master does not know them",
            place=place_of(parts.path, parts.custom_data_reader),
            mend="use one worker (--distribution_strategy Local), or write the records into files that have a reader",
        )
    reader = _custom(name, flags, parts, params, flags.get("num_epochs", 1))
    return reader, reader


def whole_of(name: str, flags: dict[str, Any], parts: ModelFile, params: dict[str, Any], is_only: bool) -> Whole:
    """Return all of an input, for one worker that reads it, maybe several times. `is_only`: there is one worker. Raises BadModel."""
    if parts.custom_data_reader is not None:
        reader = _custom(name, flags, parts, params, 1)
        return Whole(reader, reader)
    form = Form(params)
    return Whole(whole_source_of(name, flags[f"{name}_data"], form, is_only), form)


def _custom(name: str, flags: dict[str, Any], parts: ModelFile, params: dict[str, Any], epochs: int) -> CustomReader:
    make, size = parts.custom_data_reader, flags["minibatch_size"] * _MINIBATCHES
    return CustomReader(make, flags[f"{name}_data"], size, params, epochs)
