"""The job that a directory of checkpoints and logs belongs to.

A job may begin with the directory that a former one has left (`--checkpoint_dir`). Its workers are other ones, and so may be its updates.
The file `job` has a digest of the token of the job whose servers wrote there last.
"""

from __future__ import annotations

import hashlib
import os
import shutil

from .checkpoints import manifests

_FILE = "job"


def is_of_job(directory: str, token: str) -> bool:
    """Tell whether the job with a token has written what is in a directory; also where nothing is."""
    try:
        with open(os.path.join(directory, _FILE), encoding="utf-8") as file:
            return file.read() == _digest(token)
    except FileNotFoundError:
        return not manifests(directory)


def mark_job(directory: str, token: str) -> None:
    """Write that a directory belongs to the job with a token."""
    path = os.path.join(directory, _FILE)
    with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
        file.write(_digest(token))
    os.rename(file.name, path)


def clear_former(directory: str, token: str) -> None:
    """Remove what one of several servers of a former job has left in a directory: all of them together are to be begun from, by `--init`.

    What a former job's only server has left is whole, with its log, and stays.
    """
    if is_of_job(directory, token) and os.path.exists(os.path.join(directory, _FILE)):
        return
    names = os.listdir(directory) if os.path.isdir(directory) else []
    logs = os.listdir(os.path.join(directory, "journal")) if "journal" in names else []
    if all(name.endswith("-of-1") for name in logs):
        return
    for name in names:
        if name == "journal" or name.startswith("version-"):
            shutil.rmtree(os.path.join(directory, name))


def _digest(token: str) -> str:
    return hashlib.blake2b(token.encode(), digest_size=16).hexdigest()
