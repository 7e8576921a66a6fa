"""Elastic gangs: containers that are kept unstarted until it is clear with how many the gang begins.

A group with a least and a largest size begins with what is granted *at once* (see the core's sizes), but clusters grant one node after the
other. So the containers of such a gang are gathered: until all that it asked for are granted, or until it has what it needs and nothing
more was granted for a while. Then they are started, and told of together.

What a gang needs is asked for at a higher priority than what it would have beyond that, and lower indexes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trainmaster.engines.contract import Request

SETTLED = 2.0  # s without another grant, after which what there is suffices: two beats of a node by default

Key = tuple[str, int]


def is_growth(request: Request) -> bool:
    """Whether its gang can begin without it."""
    return bool(request.gang) and 0 < request.least <= request.index


class Gathering:
    """What was granted to elastic gangs, and not started yet. `clock`: seconds that never fall."""

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
        """Take note of which gangs are elastic."""
        self._elastic.update(one.gang for one in requests if is_growth(one))

    def add(self, key: Key, request: Request) -> bool:
        """Keep a container that was granted; whether it is one of those that are gathered."""
        if request.gang not in self._elastic:
            return False
        self._granted.setdefault(request.gang, {})[key] = request
        self._last[request.gang] = self._clock()
        return True

    def drop(self, key: Key) -> None:
        """Forget one that has ended, or was given back."""
        for gang, granted in list(self._granted.items()):
            granted.pop(key, None)
            if not granted:
                del self._granted[gang]

    def complete(self, wanted: Iterable[Request]) -> list[list[tuple[Key, Request]]]:
        """The gangs that begin now, each with its containers; `wanted` are the asks that are not granted yet."""
        missing = list(wanted)
        found = []
        for gang in list(self._granted):
            left = [one for one in missing if one.gang == gang]
            quiet = self._clock() - self._last[gang] >= SETTLED
            if not left or (quiet and all(is_growth(one) for one in left)):
                found.append(list(self._granted.pop(gang).items()))
        return found
