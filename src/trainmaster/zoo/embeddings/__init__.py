"""Embedding layers whose rows are in tables of parameter servers, or, with one worker alone, of this process.

    from trainmaster.zoo.embeddings import Embedding                      # for Keras
    from trainmaster.zoo.embeddings.torch_modules import Embedding, EmbeddingBag

A layer has no variable. During a step of the worker program it takes its rows from what the step has pulled (`lookups`), and the gradient
of those rows alone comes out. `keras_layer` and `torch_modules` are the layers, and import their framework; `initial` says what rows begin
with; `in_process` is the client of a table in this process; `contents` are the rows of whole tables.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Import Keras's layer when it is asked for: whoever uses PyTorch need not have Keras."""
    if name != "Embedding":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .keras_layer import Embedding

    return Embedding
