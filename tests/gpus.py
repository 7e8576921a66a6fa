"""A machine with GPUs for tests: NVIDIA's driver as far as we ask it, and `tm` where it is installed.

`tm` forks its masters and agents, so what it finds in this process they find too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class Driver(SimpleNamespace):
    """The part of pynvml that is asked: `ids` by index, `busy` those on which a process computes, `parts` of divided ones.

    Of devices in `lost` it can tell nothing, of those in `mute` not whether something computes on them.
    """

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    lost: tuple[str, ...] = ()
    mute: tuple[str, ...] = ()
    NVML_DEVICE_MIG_ENABLE = 1

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.ids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if self.ids[index] in self.lost:
            raise NVMLError("GPU is lost")
        return str(self.ids[index])

    def nvmlDeviceGetUUID(self, device: str) -> str:
        return device

    def nvmlDeviceGetComputeRunningProcesses(self, device: str) -> list[Any]:
        if device in self.mute:
            raise NVMLError_NotSupported
        return [SimpleNamespace(pid=4711)] if device in self.busy else []

    def nvmlDeviceGetMigMode(self, device: str) -> tuple[int, int]:
        if device not in self.parts:
            raise NVMLError("not supported")
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, device: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: str, index: int) -> str:
        if index >= len(self.parts[device]):
            raise NVMLError("not found")
        return str(self.parts[device][index])


def driver(*ids: str, busy: tuple[str, ...] = (), **parts: list[str]) -> Driver:
    return Driver(ids=ids, busy=busy, parts={name.replace("_", "-"): found for name, found in parts.items()})


_TM = """
import sys
sys.path.insert(0, {tests!r})
import gpus
gpus.install({ids!r})
del sys.path[0]
from trainmaster.cli import begin
begin()
"""


def tm(*arguments: str, ids: tuple[str, ...] | None, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `tm` on a machine with a driver of these GPUs, which may be none; with None on one without a driver."""
    outer = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    code = _TM.format(tests=str(Path(__file__).parent), ids=ids)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd, timeout=120, check=False,
        stdin=subprocess.DEVNULL, env={**outer, **environ},
    )  # fmt: skip


def install(ids: tuple[str, ...] | None) -> None:
    """Have this process and its forks find such a machine."""
    from trainmaster.host import machine

    machine.has_driver = lambda: ids is not None
    machine.shows_devices = lambda: bool(ids)
    sys.modules["pynvml"] = driver(*(ids or ()))  # type: ignore[assignment]
