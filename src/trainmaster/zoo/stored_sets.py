"""The checkpoints of a job, as its key `checkpoint` keeps them in a directory: read without the job.

00000007.json            the manifest of set 7: each file with its path, its size, and where its bytes lie
files/WRITER/...         the bytes

A set of which some states are damaged is read without these, and they are named.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from .embeddings.former import FLAG
from .errors import BadModel

_MANIFEST = re.compile(r"[0-9]{8,15}\.json")
_STATE = re.compile(r"((?:.*/)?state-[0-9]{8,15})\.(?:bin|json)")  # see `runtime.states.stored_states`
_MAJOR = "1"  # of the versions that are read


@contextmanager
def states_in(place: str) -> Iterator[str]:
    """Yield the directory in which the states of `place` lie: itself, or links to the newest whole set that a job has kept there."""
    files = None if "://" in place else _newest(place)
    if files is None:
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="trainmaster-") as folder:
        for name, path in files.items():
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            os.symlink(path, os.path.join(folder, name))
        yield folder


def _newest(place: str) -> dict[str, str] | None:
    """Return the files of the newest set that is whole, or lacks some states only, name -> path; None where a directory has no sets.

    Raises BadModel where all have other damage.
    """
    faults: list[str] = []  # of the sets that are not whole, the newest first
    manifests = [name for name in os.listdir(place) if _MANIFEST.fullmatch(name)]
    for name in sorted(manifests, key=lambda name: int(name.partition(".")[0]), reverse=True):
        try:
            with open(os.path.join(place, name), encoding="utf-8") as file:
                manifest = json.load(file)
            version = str(manifest["v"])
            rows = [row for row in manifest["files"] if row["at"] and _is_inside(row["path"]) and _is_inside(row["at"])]
            paths = {row["path"]: os.path.join(os.path.abspath(place), row["at"]) for row in rows}
        except (ValueError, KeyError, TypeError, RecursionError):
            faults.append(f"{os.path.join(place, name)} is cut short, or is not a manifest")
            continue
        if version.partition(".")[0] != _MAJOR:
            faults.append(f"{os.path.join(place, name)} is of version {version}, and {_MAJOR} is known")
            continue
        damages = {row["path"]: damage for row in rows if (damage := _damage(paths[row["path"]], row["size"]))}
        faults += damages.values()
        if (rest := _without_states(paths, {*damages})) is not None:
            for fault in faults:
                print(f"trainmaster: a damaged checkpoint is passed over: {fault}", file=sys.stderr, flush=True)
            return rest
    if faults:
        mend = "name another checkpoint, an exported model, or a file of weights"
        raise BadModel(f"no checkpoint in {place} is whole: {faults[0]}", place=FLAG, mend=mend)
    return None


def _without_states(paths: dict[str, str], damaged: set[str]) -> dict[str, str] | None:
    """Return files without the states that damaged ones are of; None where one is of no state, or no state is left."""
    states = {path: match[1] for path in paths if (match := _STATE.fullmatch(path))}
    lost = {states.get(path, "") for path in damaged}
    if "" in lost or (lost and lost >= {*states.values()}):
        return None
    return {path: at for path, at in paths.items() if states.get(path) not in lost}


def _damage(path: str, size: int) -> str:
    """Return the words for what is wrong with a file; "" where it has its size."""
    if not os.path.isfile(path):
        return f"{path} is missing"
    present = os.path.getsize(path)
    return "" if present == size else f"{path} has {present:,} bytes of {size:,}"


def _is_inside(path: str) -> bool:
    """Tell whether a relative path leads to no place outside of its directory."""
    return not os.path.isabs(path) and ".." not in path.split("/")
