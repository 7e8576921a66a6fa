"""The reader of a task's data: the model file's own, or one of ours."""

from __future__ import annotations

import os
from typing import Any

from .. import runtime
from ..runtime.reading import counted
from .data.custom_reader import CustomReader, SharedReader
from .data.records import Form, Whole, source_of, whole_source_of
from .errors import BadModel
from .model_file import ModelFile, place_of


def reader_of(
    name: str, flags: dict[str, Any], parts: ModelFile, params: dict[str, Any], is_shared: bool
) -> tuple[Any, Any]:
    """Return the source of the shards of an input, over all epochs, and the form of its records. Raises BadModel.

    `params`: of the reader. `is_shared`: several workers read it together.
    """
    if parts.custom_data_reader is None:
        form = Form(params)
        return source_of(name, flags[f"{name}_data"], form, flags.get("num_epochs", 1)), form
    place = place_of(parts.path, parts.custom_data_reader)
    if url := counted_input(name):
        shared = SharedReader(*_arguments(name, flags, parts, params))
        if shared.count != (count := counted(url)[0]):
            fault = f"create_shards() gives {shared.count} records here, and the job was made for {count}"
            mend = "give the same in each process, or submit again where the data have changed"
            raise BadModel(fault, place=place, mend=mend)
        return runtime.shards(name)._source(), shared
    if is_shared:
        fault = "the master does not know how many records the custom_data_reader has, so workers cannot share them"
        mend = f"let the job say it: --set inputs.{name}.url=records://COUNT/SIZE, or use one worker"
        raise BadModel(fault, place=place, mend=mend)
    reader = CustomReader(*_arguments(name, flags, parts, params), flags.get("num_epochs", 1))
    return reader, reader


def counted_input(name: str) -> str:
    """Return the URL of a job's input that is a number of records; "" where there is none."""
    url = os.environ.get(f"TRAINMASTER_INPUT_{name.upper()}", "")
    return url if url.startswith("records:") else ""


def whole_of(name: str, flags: dict[str, Any], parts: ModelFile, params: dict[str, Any], is_only: bool) -> Whole:
    """Return all of an input, for one worker that reads it, maybe several times. `is_only`: there is one worker. Raises BadModel."""
    if parts.custom_data_reader is not None:
        reader = CustomReader(*_arguments(name, flags, parts, params))
        return Whole(reader, reader)
    form = Form(params)
    return Whole(whole_source_of(name, flags[f"{name}_data"], form, is_only), form)


def records_of(name: str, flags: dict[str, Any], parts: ModelFile, params: dict[str, Any]) -> int:
    """Return the number of records of a custom reader. Raises BadModel, also where there are none."""
    count = SharedReader(*_arguments(name, flags, parts, params)).count
    if not count:
        place = place_of(parts.path, parts.custom_data_reader)
        raise BadModel("create_shards() of the custom_data_reader gives no records", place=place)
    return count


def records_per_task(flags: dict[str, Any]) -> int:
    """Return the records of a shard, as ElasticDL counts them."""
    return int(flags["minibatch_size"]) * int(flags["num_minibatches_per_task"])


def _arguments(
    name: str, flags: dict[str, Any], parts: ModelFile, params: dict[str, Any]
) -> tuple[Any, str, int, dict[str, Any]]:
    return parts.custom_data_reader, flags[f"{name}_data"], records_per_task(flags), params
