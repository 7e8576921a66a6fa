"""A model of Keras or PyTorch, behind one form: what the rest of this program does with a model.

    build(features, labels)   make its weights by a first batch, and check the loss
    feed(...)                 the form of batches that it takes
    step(features, labels)    compute gradients, and let the optimizer apply them; gives the loss
    predict(features)         its outputs, as NumPy arrays in the model's structure, or tensors for metrics
    state(), restore(state)   all that a checkpoint has of it
    load_weights(path), export(directory)

Each of these is a module that imports its framework: `wrapped` imports the one that a model is of.
"""

from __future__ import annotations

import os
from typing import Any

from ..errors import BadModel
from ..model_file import ModelFile, keras_2_mend, place_of


def wrapped(parts: ModelFile, params: dict[str, Any]) -> Any:
    """Make the model of a model file. Raises BadModel."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        model = parts.build_model(params)
    except (AttributeError, TypeError, ValueError) as error:
        if mend := keras_2_mend():
            error.add_note(mend)
        raise
    kinds = {(parent.__module__.partition(".")[0], parent.__name__) for parent in type(model).__mro__}
    if kinds & {("keras", "Model"), ("tf_keras", "Model")}:  # with the backend PyTorch it is a module of PyTorch too
        from .keras_model import KerasModel

        return KerasModel(model, parts)
    if ("torch", "Module") in kinds:
        from .torch_model import TorchModel

        return TorchModel(model, parts)
    raise BadModel(
        f"{parts.custom_model.__name__} returns a {type(model).__name__}, which is not a model",
        place=place_of(parts.path, parts.custom_model),
        mend="return a model of Keras or PyTorch",
    )
