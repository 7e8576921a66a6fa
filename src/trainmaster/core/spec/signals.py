"""Name signals and read their names, real-time ones too, for which Python has no names."""

from __future__ import annotations

import re
import signal

_REAL_TIME = re.compile(r"SIGRT(MIN\+|MAX-)(\d{1,2})")


def signal_number(name: str) -> int:
    """Return the number of "SIGTERM", "TERM", "15", "SIGRTMIN+1" or "35". Raises ValueError."""
    text = name.strip().upper()
    full = text if text.startswith("SIG") else f"SIG{text}"
    if text.isdecimal():
        number = int(text)
    elif real_time := _REAL_TIME.fullmatch(full):
        distance = int(real_time[2])
        number = signal.SIGRTMIN + distance if real_time[1] == "MIN+" else signal.SIGRTMAX - distance
    else:
        number = int(signal.Signals.__members__.get(full, 0))
    if number not in signal.valid_signals():
        raise ValueError(f"{name[:40]!r} is not a signal; a name is like USR1 or SIGTERM, a number like 10")
    return number


def signal_name(number: int) -> str:
    """Return the name of a signal, as `kill -l` prints it, e.g. "SIGKILL" or "SIGRTMIN+1"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"signal {number}"
