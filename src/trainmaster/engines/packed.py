"""A container's payload as environment variables: one JSON text, compressed and in base64.

So neither a shell nor any other program that writes or expands variables on the way changes it. Secrets never go this way.
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
STORES = {  # scheme of an object store, or a database -> the prefix of the variables that open it
    "s3": "AWS_",
    "s3a": "AWS_",
    "gs": "GOOGLE_",
    "gcs": "GOOGLE_",
    "az": "AZURE_",
    "abfs": "AZURE_",
    "abfss": "AZURE_",
    "postgresql": "PG",
}
_PIECE = 64 * 1024  # characters: one variable of a process may have 128 KiB (execve(2))


def packed(payload: Mapping[str, Any]) -> dict[str, str]:
    """Return `payload` as variables."""
    text = base64.b64encode(zlib.compress(json.dumps(dict(payload)).encode())).decode()
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    return {f"{SPEC}_{number}": piece for number, piece in enumerate(pieces)}


def stores_of(stores: Mapping[str, str], job: Job, role: str) -> dict[str, str]:
    """Select the variables that open the object stores which a container of `role` reads or writes. No container gets more."""
    from trainmaster.core.spec.job import uses, writes

    urls = [url for source in uses(job, role) for url in source.urls] + [output.url for output in writes(job, role)]
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
    """Return the prefixes of the variables that open the object stores and databases of these URLs."""
    schemes = {
        url.partition("://")[0].partition("+")[0].lower() for url in urls
    }  # postgresql+psycopg names a driver, too
    return {STORES[scheme] for scheme in schemes & STORES.keys()}


def opening_stores(payload: dict[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Set the variables that open object stores in our own environment, and return the environment of programs.

    That is `environ`, with these variables only where the programs themselves read object stores.
    """
    stores = payload.pop("stores")
    os.environ.update(stores)
    return {**stores, **environ} if payload.pop("programs_open_stores", False) else dict(environ)


def unpacked() -> dict[str, Any]:
    """Return this container's payload, and remove it from our environment, so that no program inherits it."""
    pieces: list[str] = []
    while (piece := os.environ.pop(f"{SPEC}_{len(pieces)}", None)) is not None:
        pieces.append(piece)
    payload: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode("".join(pieces))))
    return payload
