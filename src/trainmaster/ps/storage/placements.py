"""How many servers a job has, once they are not as many as it began with.

DIRECTORY/serving/servers-of-I     the job, and how many there are, by server I
"""

from __future__ import annotations

import hashlib
import json
import os

from ...runtime.folders import create_draft, make_own_folder


def job_name(token: str) -> str:
    """Return the name of a job, by which files tell whose they are, of its token."""
    return hashlib.blake2b(token.encode(), digest_size=16).hexdigest()


def note_servers(directory: str, index: int, job: str, told_servers: int, servers: int) -> None:
    """Note how many servers a job has, where its directory does not have that yet. `told_servers`: the number in the command. `servers`:
    the present number, or 0 where this server is not one of them.
    """
    noted = servers or min(told_servers, index)
    if not directory or present_servers(directory, index, job, told_servers) == noted:
        return
    path = _path(directory, index)
    make_own_folder(os.path.dirname(path))
    with open(create_draft(f"{path}.part"), "w", encoding="utf-8") as file:
        json.dump({"job": job, "told": told_servers, "servers": servers}, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.part", path)


def present_servers(directory: str, index: int, job: str, told_servers: int) -> int:
    """Return how many servers a job has: what was noted last, else `told_servers`, the number in the command. It is at most `index` where
    server `index` is not one of them.
    """
    try:
        with open(_path(directory, index), encoding="utf-8") as file:
            noted = json.load(file)
        if (noted["job"], noted["told"]) == (job, told_servers):
            return int(noted["servers"]) or min(told_servers, index)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # nothing is noted
    return told_servers


def _path(directory: str, index: int) -> str:
    return os.path.join(directory, "serving", f"servers-of-{index}")
