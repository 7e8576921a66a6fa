"""Elastic gangs: their containers are granted but not started until it is clear with how many the gang begins.

A group with a least and a largest size begins with what is granted *at once* (see the core's sizes), but clusters grant one node after the
other. So the containers of such a gang are gathered: until all that it asked for are granted, or until it has what it needs and nothing
more was granted for a while. Then they are started and reported together.

A gang's need is asked for at a higher priority than its growth beyond that, and lower indexes come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trainmaster.core.machine.stimuli import Key
from trainmaster.engines.contract import Request

SETTLED = 2.0  # s without another grant, after which a gang begins with what it has: two default heartbeats of a node


def is_growth(request: Request) -> bool:
    """Tell whether the request's gang can begin without it, or its job go on."""
    return request.growth or (bool(request.gang) and 0 < request.least <= request.index)


class Gathering:
    """The containers that were granted to elastic gangs and are not started yet. `clock`: seconds that never fall."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._elastic: set[str] = set()
        self._granted: dict[str, dict[Key, Request]] = {}
        self._last: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._granted)

    def __contains__(self, key: Key) -> bool:
        return any(key in granted for granted in self._granted.values())

    def know(self, requests: Iterable[Request]) -> None:
        """Note which gangs are elastic."""
        self._elastic.update(request.gang for request in requests if request.gang and is_growth(request))

    def add(self, key: Key, request: Request) -> bool:
        """Keep a granted container until its gang begins; return False, and keep nothing, where its gang is not elastic."""
        if request.gang not in self._elastic:
            return False
        self._granted.setdefault(request.gang, {})[key] = request
        self._last[request.gang] = self._clock()
        return True

    def drop(self, key: Key) -> None:
        """Forget a container that has ended, or was given back."""
        for gang, granted in list(self._granted.items()):
            granted.pop(key, None)
            if not granted:
                del self._granted[gang]

    def complete(self, asks: Iterable[Request]) -> list[list[tuple[Key, Request]]]:
        """Return the gangs that begin now, each with its containers, and forget them; `asks` are those that are not granted yet."""
        pending = list(asks)
        gangs = []
        for gang in list(self._granted):
            missing = [request for request in pending if request.gang == gang]
            is_quiet = self._clock() - self._last[gang] >= SETTLED
            if not missing or (is_quiet and all(is_growth(request) for request in missing)):
                gangs.append(list(self._granted.pop(gang).items()))
        return gangs
