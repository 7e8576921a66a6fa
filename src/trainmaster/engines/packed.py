"""What a container is told, as variables of its environment: one JSON text, compressed and in base64, which mean nothing to a shell or to
whatever else writes or expands variables on their way. Secrets never go this way.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

SPEC = "TRAINMASTER_SPEC"
_PIECE = 64 * 1024  # characters: one variable of a process may have 128 KiB (execve(2))


def packed(told: Mapping[str, Any]) -> dict[str, str]:
    """`told` as variables."""
    text = base64.b64encode(zlib.compress(json.dumps(dict(told)).encode())).decode()
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    return {f"{SPEC}_{number}": piece for number, piece in enumerate(pieces)}


def opening_stores(told: dict[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Take up what opens object stores, for ourselves. What programs get: `environ`, and the same where they read there themselves."""
    stores = told.pop("stores")
    os.environ.update(stores)
    return {**stores, **environ} if told.pop("programs_open_stores", False) else dict(environ)


def unpacked() -> dict[str, Any]:
    """What this container was told; gone from our environment, so that no program inherits it."""
    pieces: list[str] = []
    while (piece := os.environ.pop(f"{SPEC}_{len(pieces)}", None)) is not None:
        pieces.append(piece)
    told: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode("".join(pieces))))
    return told
