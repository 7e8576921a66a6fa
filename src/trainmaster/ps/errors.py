"""The errors of parameter servers that users read."""

from __future__ import annotations


class ServerError(RuntimeError):
    """A server cannot serve this; the message says why."""

    status = 1  # of a program that ends with it


class BadRequest(ServerError):
    """A server cannot take what it was asked to, such as another definition, and would not at another try."""


class ServerGone(ServerError, ConnectionError):
    """A server was away for longer than the client waits."""


class StateLost(ServerError):
    """A server came back without what it had."""


class NoRoom(ServerError):
    """A checkpoint's share does not fit into a server's memory."""


class InUse(ServerError):
    """Another job's server has the directory."""


class Refused(ServerError):
    """A push was refused as stale; `version` is the newest. Pull again, and do the batch again."""

    def __init__(self, version: int) -> None:
        super().__init__(f"the push is stale: the newest version is {version}")
        self.version = version


class Superseded(ServerError):
    """A newer attempt of this task is there: this one must end."""


class Moved(ServerError):
    """There are not as many servers any more: the request is for another number of them."""
