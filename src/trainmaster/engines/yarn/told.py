"""What a container is told: one JSON text in its environment, and secrets among its tokens.

YARN's node manager writes the environment into a bash script as it is, so that text is packed and in base64, which mean nothing to bash.
Secrets never stand there: they are secret keys among the container's tokens, which YARN keeps in a file of the container.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

from trainmaster.hadoop.credentials import Credentials

SPEC = "TRAINMASTER_SPEC"
SECRETS = "trainmaster.secrets"  # the one secret key: JSON
_PIECE = 64 * 1024  # characters: one variable of a process may have 128 KiB (execve(2))


def packed(told: Mapping[str, Any]) -> dict[str, str]:
    """`told` as variables."""
    text = base64.b64encode(zlib.compress(json.dumps(dict(told)).encode())).decode()
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    return {f"{SPEC}_{number}": piece for number, piece in enumerate(pieces)}


def taken() -> tuple[dict[str, Any], Credentials]:
    """What this container was given; gone from our environment, so that no program inherits it."""
    pieces: list[str] = []
    while (piece := os.environ.pop(f"{SPEC}_{len(pieces)}", None)) is not None:
        pieces.append(piece)
    told = json.loads(zlib.decompress(base64.b64decode("".join(pieces))))
    with open(os.environ["HADOOP_TOKEN_FILE_LOCATION"], "rb") as file:
        credentials = Credentials.read(file.read())
    told |= json.loads(credentials.secrets[SECRETS])
    return told, credentials
