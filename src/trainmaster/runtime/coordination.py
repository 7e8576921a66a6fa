"""Wait for the other programs of the job: barriers and locks.

Each wait has a connection of its own to the agent, which lives as long as the wait and, of a lock, as long as it is held. So whatever ends
this process frees what it holds.
"""

from __future__ import annotations

import os

from .link import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def barrier(name: str, timeout: float | None = None) -> None:
    """Return once every living member of this program's group has come to the barrier of this name, with each of its processes.

    Members are the tasks that have ranks; for a task of a role that has none, those of its role. One that dies, leaves or succeeds is
    waited for no longer. A name can be used again and again. Raises TimeoutError after `timeout` seconds (None: never); whoever comes
    later waits for this process again. Without a master it returns at once.
    """
    link = _wait("barrier", name, timeout)
    if link is not None:
        link.end()


class lock:
    """`with lock(name):` lets one process of the job at a time into the block, in the order in which they came.

    The lock is freed when the block is left, and when the process, its task or its agent dies. It is not re-entrant. Raises TimeoutError
    where it was not got within `timeout` seconds (None: wait for ever). Without a master there is nobody to wait for.
    """

    def __init__(self, name: str, timeout: float | None = None) -> None:
        self.name, self._timeout = name, timeout
        self._links: list[Link | None] = []

    def __enter__(self) -> lock:
        self._links.append(_wait("lock", self.name, self._timeout))
        return self

    def __exit__(self, *raised: object) -> None:
        link = self._links.pop()
        if link is not None:
            link.end()


def _wait(kind: str, name: str, timeout: float | None) -> Link | None:
    """Return the connection over which the wait was answered, or None without an agent."""
    if not isinstance(name, str) or not 0 < len(name) <= 256:
        raise ValueError(f"the name of a {kind} is a text of 1 to 256 characters, not {name!r}")
    path = os.environ.get("TRAINMASTER_SOCKET")
    if not path:
        return None
    link = Link(path)
    frame: dict[str, Any] = {"op": kind, "name": name, "copy": int(os.environ.get("TRAINMASTER_COPY") or 0)}
    try:
        answer = link.ask(frame, timeout)
    except BaseException:
        link.end()
        raise
    if answer is None:
        link.end()
        raise TimeoutError(f"{kind} {name}: {_LATE[kind]} within {timeout:g} s")
    return link


_LATE = {"barrier": "not everybody had come to it", "lock": "it was not free"}
