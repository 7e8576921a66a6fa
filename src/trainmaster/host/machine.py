"""Measure this machine's present capacity for jobs.

Cores are those this process may run on, or fewer where a control group sets a quota. Memory is the machine's, or less where a control group
limits it, minus a reserve for the system, the masters and the user's own session. Accelerators are NVIDIA's, as the driver lists them. A
device on which any process computes counts as busy, whoever's it is, since sharing a device surprises both users. A device that the driver
cannot describe is left out.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from pathlib import Path
from typing import Any

import attrs

from trainmaster.core.plain import Plain
from trainmaster.host.limits import ancestry

_RESERVE, _RESERVED_PART = 1 << 30, 20  # at most 1 GiB, at most a twentieth


@attrs.frozen(slots=True, eq=False, repr=False)
class Capacity(Plain):
    """The capacity of a machine for jobs. `busy` are the devices that others use now."""

    cores: float
    memory: int
    devices: tuple[str, ...] = ()
    busy: frozenset[str] = frozenset()


def machine(gpus: bool = True) -> Capacity:
    """Return the machine's capacity. Without `gpus` the driver is not asked."""
    devices, busy = accelerators() if gpus else ((), frozenset[str]())
    return Capacity(cores(), memory(), devices, busy)


def cores() -> float:
    """Return the cores that this process may use, to a hundredth."""
    allowed = float(len(os.sched_getaffinity(0)))
    for folder in ancestry("cpu"):
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        elif (folder / "cpu.cfs_quota_us").exists():
            quota, period = _line(folder / "cpu.cfs_quota_us"), _line(folder / "cpu.cfs_period_us")
        else:
            continue
        if quota not in ("max", "-1"):
            allowed = min(allowed, round(int(quota) / int(period), 2))
    return allowed


def memory() -> int:
    """Return the bytes of memory that jobs may have."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in ancestry("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (folder / name).exists() and (text := _line(folder / name)) != "max":
                size = min(size, int(text))
    return size - min(size // _RESERVED_PART, _RESERVE)


def _line(path: Path) -> str:
    return path.read_text().strip()


def accelerators() -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the NVIDIA devices' ids, as CUDA_VISIBLE_DEVICES takes them, and the ids of those on which something computes now."""
    if not (Path("/proc/driver/nvidia").exists() or Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()):
        return (), frozenset()
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # a driver's files without a driver: nothing can be computed on it
        return (), frozenset()
    try:
        return visible_devices(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except pynvml.NVMLError:  # a driver that fails as a whole
        return (), frozenset()
    finally:
        pynvml.nvmlShutdown()


def visible_devices(nvml: Any, visible: str | None) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the result of `accelerators` by the library `nvml`. `visible` narrows it as CUDA does: indexes, ids, or beginnings of ids."""
    parts: list[tuple[tuple[str, ...], str, bool]] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):  # one that has fallen off the bus, or fails
            parts += _usable_parts(nvml, index)
    if visible is not None:
        words = [word.strip() for word in visible.split(",") if word.strip()]
        parts = [part for part in parts if any(_matches(part[0], word) for word in words)]
    return tuple(name for _, name, _ in parts), frozenset(name for _, name, busy in parts if busy)


def _usable_parts(nvml: Any, index: int) -> list[tuple[tuple[str, ...], str, bool]]:
    """Return (its names, its id, whether it is busy) of the device at `index`, or of each of its MIG instances."""
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    instances = _instances(nvml, device)
    parts: list[tuple[tuple[str, ...], str, bool]] = []
    for handle in instances or [device]:
        name = _text(nvml.nvmlDeviceGetUUID(handle))
        parts.append(((name,) if instances else (name, str(index)), name, _busy(nvml, handle)))
    return parts


def _busy(nvml: Any, device: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetComputeRunningProcesses(device))
    except nvml.NVMLError_NotSupported:  # a driver that never says so, such as that of virtual devices
        return False


def _instances(nvml: Any, device: Any) -> list[Any]:
    """Return the instances into which a device is divided (MIG), none where it is whole."""
    try:
        if nvml.nvmlDeviceGetMigMode(device)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(device)
    except nvml.NVMLError:  # a device that cannot be divided
        return []
    instances = []
    for index in range(count):
        try:
            instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index))
        except nvml.NVMLError:  # this place holds no instance
            continue
    return instances


def _matches(names: tuple[str, ...], word: str) -> bool:
    return word == names[-1] if word.isdigit() else names[0].startswith(word)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def user_name() -> str:
    """Return the name of the user that this process runs as, or the number of one without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
