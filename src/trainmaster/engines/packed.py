"""What a container is told, as variables of its environment: one JSON text, compressed and in base64, which mean nothing to a shell or to
whatever else writes or expands variables on their way. Secrets never go this way.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.core.spec.job import Job

SPEC = "TRAINMASTER_SPEC"
STORES = {  # scheme of an object store -> how the variables begin that open it
    "s3": "AWS_",
    "s3a": "AWS_",
    "gs": "GOOGLE_",
    "gcs": "GOOGLE_",
    "az": "AZURE_",
    "abfs": "AZURE_",
    "abfss": "AZURE_",
}
_PIECE = 64 * 1024  # characters: one variable of a process may have 128 KiB (execve(2))


def packed(told: Mapping[str, Any]) -> dict[str, str]:
    """`told` as variables."""
    text = base64.b64encode(zlib.compress(json.dumps(dict(told)).encode())).decode()
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    return {f"{SPEC}_{number}": piece for number, piece in enumerate(pieces)}


def stores_of(stores: Mapping[str, str], job: Job, role: str) -> dict[str, str]:
    """Select the variables that open the object stores which a container of `role` reads or writes: no container gets more."""
    from trainmaster.core.spec.job import uses, writes

    urls = [source.url for source in uses(job, role)] + [output.url for output in writes(job, role)]
    urls += [
        *job.cache,
        *job.archives,
        job.environment.archive,
        job.storage,
        job.checkpoint.url if job.checkpoint is not None else "",
    ]
    beginnings = tuple(prefixes(urls))
    return {name: value for name, value in stores.items() if name.startswith(beginnings)}


def prefixes(urls: Iterable[str]) -> set[str]:
    """How the variables begin that open the object stores of these URLs."""
    return {STORES[scheme] for url in urls if (scheme := url.partition("://")[0].lower()) in STORES}


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
