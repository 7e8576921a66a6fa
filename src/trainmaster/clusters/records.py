"""Where clusters are, and the record by which one is found and ended: `cluster.json` in its directory, whatever its kind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from trainmaster.clusters.hadoop.settings import NAME
from trainmaster.core.errors import BadInput, EngineFailed, NotFound
from trainmaster.host.places import state_dir

RECORD = "cluster.json"

T = TypeVar("T")


def folder_of(name: str) -> Path:
    """Where the cluster of this name is, or would be. BadInput for what is no name."""
    if not NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot be a cluster's name: up to 31 lowercase letters, digits and hyphens")
    return state_dir() / "clusters" / name


def every(read: Callable[[Path], T | None]) -> list[T]:
    """The clusters that there are, by name, of the kind that `read` knows."""
    places = sorted((state_dir() / "clusters").glob("*/"))
    return [found for place in places if (found := read(place)) is not None]


def found(read: Callable[[Path], T | None], name: str, kind: str) -> T:
    """A cluster by name. NotFound where there is none."""
    cluster = read(folder_of(name))
    if cluster is None:
        raise NotFound(
            f"there is no cluster {name}", mend=f"start it: tm cluster up {kind} --name {name}", anchor="no-cluster"
        )
    return cluster


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One at a time works on the cluster in `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kind_of(folder: Path) -> str:
    """The kind as the record has it, "" where there is none that can be read."""
    try:
        return str(json.loads((folder / RECORD).read_text())["kind"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def check(folder: Path, kind: str) -> None:
    """BadInput where a cluster of another kind is there."""
    if (there := kind_of(folder)) not in ("", kind):
        raise BadInput(
            f"the cluster {folder.name} is of kind {there}, not {kind}",
            place=str(folder),
            mend=f"give another name, or end it first: tm cluster down {there} --name {folder.name}",
            anchor="cluster-differs",
        )


def differs(folder: Path, kind: str) -> BadInput:
    """What is to be raised where a cluster is asked for that is there with other settings."""
    return BadInput(
        f"the cluster {folder.name} is there with other settings",
        place=str(folder),
        mend=f"end it first: tm cluster down {kind} --name {folder.name}",
        anchor="cluster-differs",
    )


def write(folder: Path, kind: str, record: Mapping[str, Any]) -> None:
    """Write a record, whole or not at all; nobody else may read it, for it may have tokens in it."""
    partial = folder / f".{RECORD}"
    partial.touch(mode=0o600)
    partial.write_text(json.dumps({"version": 1, "kind": kind, **record}, indent=1))
    os.replace(partial, folder / RECORD)


def read(folder: Path, kind: str, made: Callable[[Mapping[str, Any]], T]) -> T | None:
    """The cluster of a directory, None where there is none of this kind. EngineFailed where its record cannot be understood."""
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text())
        return made(record) if record["kind"] == kind else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise EngineFailed(
            f"the record of the cluster {folder.name} cannot be read: {error}",
            place=str(folder / RECORD),
            mend=f"end what is left of it: tm cluster down {kind} --name {folder.name}",
            anchor="cluster-failed",
        ) from error
