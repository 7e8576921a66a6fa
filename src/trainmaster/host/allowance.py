"""The clock of a lease, signals by name, and what a process is allowed: its limits, umask and signals.

`Allowance` is what a program gets of its user: ours may differ for ourselves (more descriptors, other signals), a program never sees that.
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
    """Seconds since boot, a suspended machine's included: a lease must not outlive a sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@attrs.frozen(slots=True, eq=False, repr=False)
class Allowance(Plain):
    """Limits (resource number -> soft, hard), umask, ignored and blocked signals of the user who submitted."""

    limits: Mapping[int, tuple[int, int]]
    umask: int
    ignored: Sequence[int] = ()
    blocked: Sequence[int] = ()

    @classmethod
    def present(cls) -> Allowance:
        """What this process has, taken before it changes anything for itself."""
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
        """Take it on; called in a child, just before it becomes the program."""
        for number, wanted in self.limits.items():
            present = resource.getrlimit(number)
            if present != wanted:
                resource.setrlimit(number, _possible(wanted, present[1]))
        os.umask(self.umask)
        ignored = set(self.ignored)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set(self.blocked))


def _possible(wanted: tuple[int, int], hard: int) -> tuple[int, int]:
    """The nearest to `wanted` under a present hard limit, which only root may raise."""
    if hard == resource.RLIM_INFINITY or os.geteuid() == 0:
        return wanted
    soft, high = (hard if value == resource.RLIM_INFINITY else min(value, hard) for value in wanted)
    return soft, high


_RESOURCES = tuple(sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}))
_SIGNALS = tuple(int(s) for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP))


def signal_number(name: str) -> int:
    """The number of "SIGTERM", "TERM" or "15". Raises ValueError."""
    text = name.strip().upper()
    number = int(text) if text.isdigit() else signal.Signals[text if text.startswith("SIG") else f"SIG{text}"].value
    return int(signal.Signals(number))


def signal_name(number: int) -> str:
    """The name of a signal, e.g. "SIGKILL"; of a real-time signal its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
