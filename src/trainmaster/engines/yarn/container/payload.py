"""The payload of a container: `packed` in its environment, and secrets among its tokens.

Secrets are never in the environment, which YARN's node manager writes into a script: they are secret keys among the container's tokens,
which YARN puts into a file of the container. That file is overwritten without them as soon as it was read, because programs of the
container could read it.
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
    """Take this container's payload out of its environment, so that no program inherits it. Return it with the container's tokens."""
    payload = unpacked()
    with open(os.environ["HADOOP_TOKEN_FILE_LOCATION"], "rb") as file:
        credentials = Credentials.read(file.read())
    payload |= json.loads(credentials.secrets[SECRETS])
    remaining = Credentials(
        credentials.tokens, {name: key for name, key in credentials.secrets.items() if name != SECRETS}
    )
    _scrub(os.environ["HADOOP_TOKEN_FILE_LOCATION"], remaining.write())
    return payload, remaining


def _scrub(path: str, content: bytes) -> None:
    """Overwrite a file in place with `content`, and with zeros beyond it."""
    try:
        with open(path, "r+b") as file:
            file.write(content.ljust(os.fstat(file.fileno()).st_size, b"\0"))
            file.flush()
            file.truncate(len(content))
    except OSError as error:
        print(
            f"warning: the job's secrets stay in {path}, which cannot be written: {error}", file=sys.stderr, flush=True
        )
