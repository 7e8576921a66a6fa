"""The end of a connection to a master."""

from __future__ import annotations

from trainmaster.core.errors import EngineFailed


class Disconnected(EngineFailed):
    """The master was there and is not any more."""
