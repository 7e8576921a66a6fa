"""Accelerators of a container whose engine only counts them: which of the host's devices they are is chosen here.

A device is held by a lock on `<runtime>/devices/<its id>`, for as long as the process lives that chose it, so that of two agents of a
host no two have the same one. One on which something else computes is passed over: it may be a container's that is just being ended, so
a while is waited for enough of them.

The host's devices are those that the driver tells, narrowed by CUDA_VISIBLE_DEVICES as CUDA does; where there is no driver, those that
this variable names. Where there is neither, nothing can be chosen. Where the engine shows a container its own devices alone, these are
all that are found.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from trainmaster.core.errors import EngineFailed
from trainmaster.host import places
from trainmaster.host.locks import lock, unlock
from trainmaster.host.machine import accelerators

VISIBLE = "CUDA_VISIBLE_DEVICES"
PATIENCE = 60.0  # s that devices may take to become free: those who had them are counted out already
_PAUSE = 0.2  # s between two looks

Found = tuple[tuple[str, ...], frozenset[str]]  # ids, and those of them on which something computes


class Devices:
    """Devices held by this process. `find` tells what the host has."""

    def __init__(self, find: Callable[[], Found] | None = None) -> None:
        self._find = find or found
        self._held: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._held)

    def take(self, n: int, patience: float = PATIENCE) -> tuple[str, ...]:
        """Hold n devices; none where the host tells of none. EngineFailed where there are not so many free ones in time."""
        end = time.monotonic() + patience
        while n:
            all_of_them, busy = self._find()
            if not all_of_them:
                break
            free = [name for name in all_of_them if name not in busy]
            if self._took(n, free):
                return self.names
            if time.monotonic() > end:
                raise EngineFailed(
                    f"{n} of {len(all_of_them)} devices are needed, and so many are not free: {', '.join(all_of_them)}",
                    mend="see what computes on them: nvidia-smi", anchor="devices",
                )  # fmt: skip
            time.sleep(_PAUSE)
        return ()

    def _took(self, n: int, free: list[str]) -> bool:
        """Take n of them, or none. Only one process of a host tries at a time: else two could each have what the other lacks."""
        turn = None
        while turn is None:
            turn = lock(_folder() / ".turn")
            if turn is None:
                time.sleep(_PAUSE / 20)
        try:
            for name in free:
                if len(self._held) < n and (descriptor := lock(_path(name))) is not None:
                    self._held[name] = descriptor
            if len(self._held) < n:
                self.release()
            return bool(self._held)
        finally:
            unlock(_folder() / ".turn", turn)

    def release(self) -> None:
        for name, descriptor in self._held.items():
            unlock(_path(name), descriptor)
        self._held = {}


def found() -> Found:
    """What this host has."""
    told = accelerators()
    named = os.environ.get(VISIBLE, "")
    if told[0] or not named or Path("/dev/nvidiactl").exists():
        return told
    return tuple(word.strip() for word in named.split(",") if word.strip() not in ("", "-1")), frozenset()


def _folder() -> Path:
    return places.runtime_dir() / "devices"


def _path(name: str) -> Path:
    return _folder() / quote(name, safe="")
