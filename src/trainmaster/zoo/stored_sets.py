"""The checkpoints of a job, as its key `checkpoint` keeps them in a directory: read without the job.

00000007.json            the manifest of set 7: each file with its path, its size, and where its bytes lie
files/WRITER/...         the bytes
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from .embeddings.former import FLAG
from .errors import BadModel

_MANIFEST = re.compile(r"\d{8,}\.json")
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
    """Return the files of the newest whole set, name -> path; None where a directory has no sets. Raises BadModel where none is whole."""
    fault = ""  # of the newest that is not whole
    manifests = [name for name in os.listdir(place) if _MANIFEST.fullmatch(name)]
    for name in sorted(manifests, key=lambda name: int(name.partition(".")[0]), reverse=True):
        try:
            with open(os.path.join(place, name), encoding="utf-8") as file:
                manifest = json.load(file)
            version = str(manifest["v"])
            rows = [row for row in manifest["files"] if row["at"] and _is_inside(row["path"]) and _is_inside(row["at"])]
            paths = {row["path"]: os.path.join(os.path.abspath(place), row["at"]) for row in rows}
        except (ValueError, KeyError, TypeError):
            fault = fault or f"{os.path.join(place, name)} is cut short, or no manifest"
            continue
        if version.partition(".")[0] != _MAJOR:
            fault = fault or f"{os.path.join(place, name)} is of version {version}, and {_MAJOR} is known"
            continue
        damages = [damage for row in rows if (damage := _damage(paths[row["path"]], row["size"]))]
        if not damages:
            return paths
        fault = fault or damages[0]
    if fault:
        mend = "name another checkpoint, an exported model, or a file of weights"
        raise BadModel(f"no checkpoint in {place} is whole: {fault}", place=FLAG, mend=mend)
    return None


def _damage(path: str, size: int) -> str:
    """Return the words for what is wrong with a file; "" where it has its size."""
    if not os.path.isfile(path):
        return f"{path} is missing"
    present = os.path.getsize(path)
    return "" if present == size else f"{path} has {present:,} bytes of {size:,}"


def _is_inside(path: str) -> bool:
    """Tell whether a relative path leads to no place outside of its directory."""
    return not os.path.isabs(path) and ".." not in path.split("/")
