"""What a container is told: `packed` in its environment, and secrets among its tokens.

Secrets never stand in the environment, which YARN's node manager writes into a script: they are secret keys among the container's tokens,
which YARN keeps in a file of the container.
"""

from __future__ import annotations

import json
import os
from typing import Any

from trainmaster.engines.packed import unpacked
from trainmaster.hadoop.credentials import Credentials

SECRETS = "trainmaster.secrets"  # the one secret key: JSON


def taken() -> tuple[dict[str, Any], Credentials]:
    """What this container was given; gone from our environment, so that no program inherits it."""
    told = unpacked()
    with open(os.environ["HADOOP_TOKEN_FILE_LOCATION"], "rb") as file:
        credentials = Credentials.read(file.read())
    told |= json.loads(credentials.secrets[SECRETS])
    return told, credentials
