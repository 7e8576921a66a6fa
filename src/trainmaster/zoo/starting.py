"""The state that a model begins from: that of the job's own checkpoint, or what `--checkpoint_dir_for_init` names.

| it names | what is taken |
|---|---|
| a directory or URL of checkpoints, or the directory of a job's checkpoints | weights, the optimizer's state, the number of steps |
| the directory of an exported model | weights |
| a file of weights: `.keras`, `.weights.h5`, `.pt` | weights |
"""

from __future__ import annotations

import glob
import os
from typing import Any

from .. import runtime
from .errors import BadModel
from .stored_sets import states_in

FLAG = "--checkpoint_dir_for_init"


def initialise(model: Any, place: str) -> int:
    """Give a model that is built its weights, and return the number of steps behind them. Raises BadModel."""
    if "://" not in place and not os.path.exists(place):
        raise BadModel(f"{place} does not exist", place=FLAG)
    if not os.path.isfile(place):
        loaded = _checkpoint(place)
        if loaded is not None:
            restore(model, loaded)
            return int(loaded.step)
    path = place if os.path.isfile(place) else _exported(model, place)
    if not path or not path.endswith(model.weights_files):
        if is_of_servers(place):
            mend = "name what the training exported"
            raise BadModel(
                f"{place} has checkpoints of parameter servers, which they alone read", place=FLAG, mend=mend
            )
        endings = ", ".join(model.weights_files)
        mend = f"name a directory of checkpoints, an exported model, or a file of weights ({endings})"
        raise BadModel(f"{place} has no weights for this model", place=FLAG, mend=mend)
    model.load_weights(path)
    return 0


def restore(model: Any, state: Any) -> None:
    """Give a model the state that a checkpoint has. Raises BadModel."""
    if not isinstance(state, dict) or state.get("kind") != model.kind:
        raise BadModel("the checkpoint is not one of this kind of model", place=str(sorted(map(str, state))))
    model.restore(state)


def is_of_servers(place: str) -> bool:
    """Tell whether a directory has checkpoints of parameter servers, which they read themselves."""
    return bool(glob.glob(os.path.join(glob.escape(place), "version-*", "manifest-of-*.json")))


def _checkpoint(place: str) -> Any:
    from ..runtime.states import stored_states

    with states_in(place) as directory:
        if "://" not in directory and not glob.glob(os.path.join(glob.escape(directory), "state-*.json")):
            return None
        if next(stored_states.headers(stored_states.place_at(directory)), None) is None:
            return None
        return runtime.checkpoint.load(at=directory, memory=False)


def _exported(model: Any, directory: str) -> str:
    """Return the path of an exported model: in the directory, or in that of a task below it."""
    for name in model.model_files:
        for path in (
            os.path.join(directory, name),
            *sorted(glob.glob(os.path.join(glob.escape(directory), "*", name))),
        ):
            if os.path.isfile(path):
                return path
    return ""
