"""The directories of clusters, and their records: by `cluster.json` in its directory a cluster of any kind is found and ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from trainmaster.core.errors import BadInput, EngineFailed, NotFound
from trainmaster.host.places import state_dir

RECORD = "cluster.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")

T = TypeVar("T")


def folder_of(name: str) -> Path:
    """Return the directory of the cluster of this name, whether it exists or not. Raises BadInput where the name is not valid."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot be a cluster's name: up to 31 lowercase letters, digits and hyphens")
    return state_dir() / "clusters" / name


def every(read: Callable[[Path], T | None]) -> list[T]:
    """Return the existing clusters, by name, of the kind that `read` knows."""
    folders = sorted((state_dir() / "clusters").glob("*/"))
    return [cluster for folder in folders if (cluster := read(folder)) is not None]


def find(read: Callable[[Path], T | None], name: str, kind: str) -> T:
    """Return a cluster by name. Raises NotFound where there is none."""
    cluster = read(folder_of(name))
    if cluster is None:
        raise NotFound(
            f"there is no cluster {name}", mend=f"start it: tm cluster up {kind} --name {name}", anchor="no-cluster"
        )
    return cluster


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the cluster in `folder`, so that one process at a time works on it."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kind_of(folder: Path) -> str:
    """Return the kind in the record, "" where no record can be read."""
    try:
        return str(json.loads((folder / RECORD).read_text())["kind"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def check(folder: Path, kind: str) -> None:
    """Raise BadInput where the folder has a cluster of another kind."""
    if (existing := kind_of(folder)) not in ("", kind):
        raise BadInput(
            f"the cluster {folder.name} is of kind {existing}, not {kind}",
            place=str(folder),
            mend=f"give another name, or end it first: tm cluster down {existing} --name {folder.name}",
            anchor="cluster-differs",
        )


def differs(folder: Path, kind: str) -> BadInput:
    """Return the error to raise where the cluster exists with other settings than those asked for."""
    return BadInput(
        f"the cluster {folder.name} is there with other settings",
        place=str(folder),
        mend=f"end it first: tm cluster down {kind} --name {folder.name}",
        anchor="cluster-differs",
    )


def write(folder: Path, kind: str, record: Mapping[str, Any]) -> None:
    """Write a record, whole or not at all. Nobody else may read it, for it may contain tokens."""
    partial = folder / f".{RECORD}"
    partial.touch(mode=0o600)
    partial.write_text(json.dumps({"version": 1, "kind": kind, **record}, indent=1))
    os.replace(partial, folder / RECORD)


def read(folder: Path, kind: str, build: Callable[[Mapping[str, Any]], T]) -> T | None:
    """Return the cluster of a directory, which `build` makes of its record; None where there is none of this kind.

    Raises EngineFailed where the record cannot be understood.
    """
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text())
        return build(record) if record["kind"] == kind else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise EngineFailed(
            f"the record of the cluster {folder.name} cannot be read: {error}",
            place=str(folder / RECORD),
            mend=f"end what is left of it: tm cluster down {kind} --name {folder.name}",
            anchor="cluster-failed",
        ) from error


def revive(cluster: Any, say: Callable[[str], object]) -> bool:
    """Start the dead daemons of a cluster whose others live. Return False where all are dead, or where that is not enough."""
    if not (cluster.ready and cluster.state == "broken"):
        return False
    ended = [name for name in cluster.names if not cluster.daemon(name).alive]
    say(f"{' and '.join(ended)} of the cluster {cluster.name} ended; starting again what ended")
    try:
        cluster.revive()
    except EngineFailed as error:
        say(f"that is not enough: {error.message.splitlines()[0]}")
        return False
    return True
