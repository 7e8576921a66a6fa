"""ElasticDL's program API, for model files and programs that were written for it. Each module is imported by name.

This package runs in users' programs. It needs the standard library and NumPy, and its modules for a framework need that framework.
`preprocessing`: the preprocessing layers, for Keras 3. `fingerprints`: the hash of whole numbers by which these choose a bin.
`alias`: the packages under ElasticDL's own names. `Embedding`: the layer whose rows are on parameter servers, for Keras 3.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Embedding"]


def __getattr__(name: str) -> Any:
    """Import the layer when it is asked for: whoever uses PyTorch need not have Keras."""
    if name != "Embedding":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ..zoo.embeddings import Embedding

    return Embedding
