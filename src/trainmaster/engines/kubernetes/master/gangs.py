"""Limit the time that part of a gang may be kept from others while the rest is not granted.

Kubernetes places pods one by one, so of two gangs that do not fit together each may get a part, and neither ever the rest. The granted
part of a gang is given back after `gang_timeout`, and asked for again later: the core does both, once it hears of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainmaster.engines.contract import Request
from trainmaster.engines.gangs import is_growth


class Patience:
    """`limit`: s; None: for ever."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._since: dict[str, float] = {}  # gang -> when the first of it was granted

    def granted(self, request: Request, now: float) -> None:
        if request.gang:
            self._since.setdefault(request.gang, now)

    def overdue(self, requests: Iterable[Request], now: float) -> list[str]:
        """Return the gangs of which a part was granted that long ago, and that still lack what they cannot begin without; each one once."""
        missing = {request.gang for request in requests if request.gang and not is_growth(request)}
        self._since = {gang: since for gang, since in self._since.items() if gang in missing}
        overdue_gangs = [
            gang for gang, since in self._since.items() if self._limit is not None and now - since >= self._limit
        ]
        for gang in overdue_gangs:
            del self._since[gang]
        return overdue_gangs
