"""What a container is given: files of HDFS, a command, what it is told in its environment, and secrets beside YARN's own tokens.

YARN's node manager writes environment and command into a bash script as they are, so both hold letters alone that mean nothing to bash:
what a container is told is one JSON text, packed and in base64. Secrets never stand there: they are secret keys among the container's
tokens, which YARN keeps in a file of the container.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs

from trainmaster.hadoop.credentials import Credentials
from trainmaster.hadoop.proto import yarn_pb2 as y

SPEC = "TRAINMASTER_SPEC"
SECRETS = "trainmaster.secrets"  # the one secret key: JSON
ARCHIVE = "runtime"  # the link to the runtime archive in a container's directory
_PIECE = 64 * 1024  # characters: one variable of a process may have 128 KiB (execve(2))


@attrs.frozen(slots=True)
class Resource:
    """A file of HDFS that YARN brings to containers. `stamp`: its modification time, ms since 1970, which must be exact."""

    url: str
    size: int
    stamp: int
    public: bool
    unpacked: bool = False

    def message(self) -> y.LocalResourceProto:
        parts = urlsplit(self.url)
        return y.LocalResourceProto(
            resource=y.URLProto(scheme=parts.scheme, host=parts.netloc.partition(":")[0], port=parts.port or -1, file=parts.path),
            size=self.size, timestamp=self.stamp, type=y.ARCHIVE if self.unpacked else y.FILE,
            visibility=y.PUBLIC if self.public else y.PRIVATE,
        )  # fmt: skip


def context(
    entry: str, told: Mapping[str, Any], secret: Mapping[str, Any], resources: Mapping[str, Resource],
    tokens: Credentials | None = None, environment: Mapping[str, str] | None = None,
) -> y.ContainerLaunchContextProto:  # fmt: skip
    """A container that becomes `entry` (MODULE:FUNCTION) of the runtime archive, with `resources` under their names in its directory."""
    credentials = Credentials(dict(tokens.tokens) if tokens else {}, {SECRETS: json.dumps(dict(secret)).encode()})
    made = y.ContainerLaunchContextProto(
        tokens=credentials.write(),
        command=[f"exec sh ./{ARCHIVE}/start {entry} 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"],
    )
    for name, resource in resources.items():
        made.localResources.add(key=name, value=resource.message())
    for name, value in {**(environment or {}), **packed(told)}.items():
        made.environment.add(key=name, value=value)
    return made


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
