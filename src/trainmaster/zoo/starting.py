"""The state that a model begins from: that of the job's own checkpoint, or what `--checkpoint_dir_for_init` names.

| it names | what is taken |
|---|---|
| a directory or URL of checkpoints, or the directory of a job's checkpoints | weights, the optimizer's state, the number of steps |
| a directory of checkpoints of parameter servers, or one of a job's | rows, parameters, their slots: see `use_former` |
| the directory of an exported model | weights |
| a file of weights: `.keras`, `.weights.h5`, `.pt` | weights |
"""

from __future__ import annotations

import glob
import os
from typing import Any

from .. import runtime
from ..ps.client import Client
from ..ps.errors import ServerError
from ..ps.specification import Definition
from .embeddings.former import FLAG, is_of_servers, loaded_former
from .embeddings.in_process import InProcess
from .errors import BadModel
from .flags import PARAMETER_SERVER
from .models.server_strategy import client_of_job
from .stored_sets import states_in


def initialise(model: Any, place: str) -> int:
    """Give a model that is built its weights, and return the number of steps that trained them. Raises BadModel."""
    if (loaded := _checkpoint(place)) is not None:
        restore(model, loaded)
        return int(loaded.step)
    model.load_weights(_weights(model, place))
    return 0


def initialise_tables(model: Any, place: str) -> None:
    """Give a model that is built, and does not use its tables yet, weights, and rows for the tables to begin with. Raises BadModel."""
    if _checkpoint(place) is not None:
        mend = "name what its training exported, or let it go on with its --checkpoint_dir"
        raise BadModel(f"tables cannot begin from a worker's checkpoint in {place}", place=FLAG, mend=mend)
    model.load_before_tables(_weights(model, place))


def use_former(model: Any, flags: dict[str, Any], say: Any) -> int:
    """Give a model that is built, and is not trained, the tables and parameters of a checkpoint, and return the checkpoint's steps.

    The rows are in this process, or on the job's servers, which began from the same checkpoint. Raises BadModel.
    """
    client: Client
    if flags["distribution_strategy"] == PARAMETER_SERVER:
        client = client_of_job(flags["num_ps_pods"])
    else:
        client = InProcess(loaded_former(flags[FLAG.lstrip("-")]))
    try:
        former = client.adopt()
        model.use_tables({*former.tables}, say)
        dense = {name: value.shape for name, value in model.tables.dense().items()}
        present = Definition(dense, model.tables.specs, former.optimizer, former.updates)
        if conflict := former.conflict(present):
            raise BadModel(
                f"the checkpoint is of another model: {conflict} now", place=f"{FLAG} {flags[FLAG.lstrip('-')]}",
                mend="evaluate and predict with the model file, and the --model_params, that it was trained with",
            )  # fmt: skip
        model.tables.source = client
        pulled = client.pull()
        model.tables.assign(pulled.dense)
    except ServerError as error:
        raise BadModel(f"the parameter servers cannot serve the model: {error}") from None
    return pulled.version


def _weights(model: Any, place: str) -> str:
    """Return the path of the file of weights that a place has. Raises BadModel."""
    path = place if os.path.isfile(place) else _exported(model, place)
    if path and path.endswith(model.weights_files):
        return path
    if is_of_servers(place):
        mend = "train with ParameterServerStrategy, or name what the training exported"
        raise BadModel(
            f"{place} has checkpoints of parameter servers, and this strategy has no tables", place=FLAG, mend=mend
        )
    endings = ", ".join(model.weights_files)
    mend = f"name a directory of checkpoints, an exported model, or a file of weights ({endings})"
    raise BadModel(f"{place} has no weights for this model", place=FLAG, mend=mend)


def restore(model: Any, state: Any) -> None:
    """Give a model the state that a checkpoint has. Raises BadModel."""
    if not isinstance(state, dict) or state.get("kind") != model.kind:
        raise BadModel("the checkpoint is not one of this kind of model", place=str(sorted(map(str, state))))
    model.restore(state)


def _checkpoint(place: str) -> Any:
    """Return the newest checkpoint of a place; None where it has none. Raises BadModel where there is no such place."""
    from ..runtime.states import stored_states

    if "://" not in place and not os.path.exists(place):
        raise BadModel(f"{place} does not exist", place=FLAG)
    if os.path.isfile(place):
        return None
    with states_in(place) as directory:
        if "://" not in directory and not glob.glob(os.path.join(glob.escape(directory), "state-*.json")):
            return None
        if next(stored_states.headers(stored_states.place_at(directory)), None) is None:
            return None
        return runtime.checkpoint.load(at=directory, memory=False)


def _exported(model: Any, directory: str) -> str:
    """Return the path of an exported model: in the directory, or in that of a task below it."""
    for name in model.model_files:
        below = sorted(glob.glob(os.path.join(glob.escape(directory), "*", name)))
        for path in filter(os.path.isfile, [os.path.join(directory, name), *below]):
            return path
    return ""
