"""A decorator of model classes."""

from collections.abc import Callable
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)


def declare_model_inputs(*args: str) -> Callable[[Kind], Kind]:
    """Name the tensors that the model's `call` takes; they are kept as `_model_inputs` of the class."""

    def decorated(kind: Kind) -> Kind:
        if not args or not all(isinstance(name, str) for name in args):
            raise ValueError(f"declare_model_inputs needs one name or more, and each must be a string: {list(args)}")
        kind._model_inputs = list(args)  # type: ignore[attr-defined]
        return kind

    return decorated
