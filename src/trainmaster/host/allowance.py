"""The clock of a lease, and a process's allowance: its limits, umask and signals.

A program gets the `Allowance` of its user. Our own processes may differ (more descriptors, other signals); a program never sees that.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.plain import Plain

# Python's own start ignores these; a program must find them as a shell would give them.
_OF_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})


def boottime() -> float:
    """Return the seconds since boot, those of a suspended machine included: a lease must not outlive a sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@attrs.frozen(slots=True, eq=False, repr=False)
class Allowance(Plain):
    """The limits (resource number -> soft, hard), umask, ignored and blocked signals of the user who submitted."""

    limits: Mapping[int, tuple[int, int]]
    umask: int
    ignored: Sequence[int] = ()
    blocked: Sequence[int] = ()

    @classmethod
    def present(cls) -> Allowance:
        """Return this process's allowance, read before it changes anything for itself."""
        limits = {number: resource.getrlimit(number) for number in _RESOURCES}
        umask = os.umask(0o077)
        os.umask(umask)
        ignored = [s for s in signal.valid_signals() if s not in _OF_PYTHON and signal.getsignal(s) == signal.SIG_IGN]
        return cls(
            limits, umask, tuple(map(int, ignored)), tuple(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Allowance:
        limits = {int(number): (int(soft), int(hard)) for number, (soft, hard) in data["limits"].items()}
        return cls(limits, int(data["umask"]), tuple(data.get("ignored", ())), tuple(data.get("blocked", ())))

    def to_json(self) -> dict[str, Any]:
        limits = {str(number): list(pair) for number, pair in self.limits.items()}
        return {"limits": limits, "umask": self.umask, "ignored": list(self.ignored), "blocked": list(self.blocked)}

    def apply(self) -> None:
        """Set this allowance for the calling process: a child, just before it becomes the program."""
        for number, limit in self.limits.items():
            present = resource.getrlimit(number)
            if present != limit:
                resource.setrlimit(number, _possible_limit(limit, present[1]))
        os.umask(self.umask)
        ignored = set(self.ignored)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set(self.blocked))


def _possible_limit(limit: tuple[int, int], hard: int) -> tuple[int, int]:
    """Return the limit nearest to `limit` under the present hard limit, which only root may raise."""
    if hard == resource.RLIM_INFINITY or os.geteuid() == 0:
        return limit
    soft, high = (hard if value == resource.RLIM_INFINITY else min(value, hard) for value in limit)
    return soft, high


_RESOURCES = tuple(sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}))
_SIGNALS = tuple(int(s) for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP))
