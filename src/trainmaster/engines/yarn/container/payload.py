"""What a container is told: `packed` in its environment, and secrets among its tokens.

Secrets never stand in the environment, which YARN's node manager writes into a script: they are secret keys among the container's tokens,
which YARN puts into a file of the container. That file is overwritten without them as soon as it was read: programs run beside it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from trainmaster.engines.packed import unpacked
from trainmaster.hadoop.security.credentials import Credentials

SECRETS = "trainmaster.secrets"  # the one secret key: JSON


def taken() -> tuple[dict[str, Any], Credentials]:
    """What this container was given; gone from our environment, so that no program inherits it."""
    told = unpacked()
    with open(os.environ["HADOOP_TOKEN_FILE_LOCATION"], "rb") as file:
        credentials = Credentials.read(file.read())
    told |= json.loads(credentials.secrets[SECRETS])
    left = Credentials(credentials.tokens, {name: key for name, key in credentials.secrets.items() if name != SECRETS})
    _scrub(os.environ["HADOOP_TOKEN_FILE_LOCATION"], left.write())
    return told, left


def _scrub(path: str, content: bytes) -> None:
    """Overwrite a file in place with `content`, and zeros over what was beyond."""
    try:
        with open(path, "r+b") as file:
            file.write(content.ljust(os.fstat(file.fileno()).st_size, b"\0"))
            file.flush()
            file.truncate(len(content))
    except OSError as error:
        print(
            f"warning: the job's secrets stay in {path}, which cannot be written: {error}", file=sys.stderr, flush=True
        )
