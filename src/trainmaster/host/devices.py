"""Choose the devices of a container whose engine only counts accelerators.

A lock on `<runtime>/devices/<its id>` holds a device for as long as the process that chose it lives, so no two agents of a host have the
same one. A device on which something else computes is passed over. That may be a container which is just being ended, so the choice waits
a while for enough devices.

The host's devices are those that the driver lists, narrowed by CUDA_VISIBLE_DEVICES as CUDA does. Without a driver they are those that
this variable names. Without either, nothing can be chosen. Where the engine shows a container only its own devices, only these are found.
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
from trainmaster.host.machine import VISIBLE, accelerators

PATIENCE = 60.0  # s that devices may take to become free: those who had them are counted out already
_PAUSE = 0.2  # s between two looks

Found = tuple[tuple[str, ...], frozenset[str]]  # ids, and those of them on which something computes


class Devices:
    """The devices that this process holds. `find` returns the host's devices."""

    def __init__(self, find: Callable[[], Found] | None = None) -> None:
        self._find = find or found
        self._held: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._held)

    def take(self, n: int, patience: float = PATIENCE) -> tuple[str, ...]:
        """Hold n devices, or none where the host lists none. Raises EngineFailed where not enough become free in time."""
        end = time.monotonic() + patience
        while n:
            devices, busy = self._find()
            if not devices:
                break
            free = [name for name in devices if name not in busy]
            if self._hold(n, free):
                return self.names
            if time.monotonic() > end:
                raise EngineFailed(
                    f"{n} of {len(devices)} devices are needed, and so many are not free: {', '.join(devices)}",
                    mend="see what computes on them: nvidia-smi", anchor="devices",
                )  # fmt: skip
            time.sleep(_PAUSE)
        return ()

    def _hold(self, n: int, free: list[str]) -> bool:
        """Hold n of the free devices, or none. One process of a host tries at a time: else two could each have what the other lacks."""
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
    """Return this host's devices."""
    devices = accelerators()
    variable = os.environ.get(VISIBLE, "")
    if devices[0] or not variable or Path("/dev/nvidiactl").exists():
        return devices
    return tuple(word.strip() for word in variable.split(",") if word.strip() not in ("", "-1")), frozenset()


def _folder() -> Path:
    return places.shared_dir("devices")


def _path(name: str) -> Path:
    return _folder() / quote(name, safe="")
