"""What this machine has for jobs, as it is now.

Cores are those this process may run on, or fewer where a control group sets a quota. Memory is the machine's, or less where a control group
limits it, minus a reserve for the system, the masters and the user's own session. Accelerators are NVIDIA's, asked of the driver; one on
which some process computes is taken, whoever's it is, since sharing one surprises both; one of which the driver cannot tell is left out.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import attrs

from trainmaster.core.plain import Plain
from trainmaster.host.limits import ancestry

_RESERVE, _RESERVED_PART = 1 << 30, 20  # at most 1 GiB, at most a twentieth


@attrs.frozen(slots=True, eq=False, repr=False)
class Capacity(Plain):
    """What the machine has for jobs. `taken` are devices that others than us use now."""

    cores: float
    memory: int
    devices: tuple[str, ...] = ()
    taken: frozenset[str] = frozenset()


def machine(gpus: bool = True) -> Capacity:
    """The machine's capacity. Without `gpus` the driver is not asked."""
    devices, taken = accelerators() if gpus else ((), frozenset[str]())
    return Capacity(cores(), memory(), devices, taken)


def cores() -> float:
    """Cores that this process may use, to a hundredth."""
    found = float(len(os.sched_getaffinity(0)))
    for folder in ancestry("cpu"):
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        elif (folder / "cpu.cfs_quota_us").exists():
            quota, period = _line(folder / "cpu.cfs_quota_us"), _line(folder / "cpu.cfs_period_us")
        else:
            continue
        if quota not in ("max", "-1"):
            found = min(found, round(int(quota) / int(period), 2))
    return found


def memory() -> int:
    """Bytes that jobs may have."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in ancestry("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (folder / name).exists() and (text := _line(folder / name)) != "max":
                found = min(found, int(text))
    return found - min(found // _RESERVED_PART, _RESERVE)


def _line(path: Path) -> str:
    return path.read_text().strip()


def accelerators() -> tuple[tuple[str, ...], frozenset[str]]:
    """The NVIDIA devices' ids, as CUDA_VISIBLE_DEVICES takes them, and those on which something computes now."""
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
    """What `accelerators` says, by the library `nvml`; `visible` narrows it as CUDA does: indexes, ids, or beginnings of ids."""
    found: list[tuple[tuple[str, ...], str, bool]] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):  # one that has fallen off the bus, or fails
            found += _found(nvml, index)
    if visible is not None:
        wanted = [word.strip() for word in visible.split(",") if word.strip()]
        found = [one for one in found if any(_names(one[0], word) for word in wanted)]
    return tuple(name for _, name, _ in found), frozenset(name for _, name, busy in found if busy)


def _found(nvml: Any, index: int) -> list[tuple[tuple[str, ...], str, bool]]:
    """(the names it goes by, its id, whether it is busy) of the device at `index`, or of each of its parts."""
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    parts = _parts(nvml, device)
    found: list[tuple[tuple[str, ...], str, bool]] = []
    for part in parts or [device]:
        name = _text(nvml.nvmlDeviceGetUUID(part))
        found.append(((name,) if parts else (name, str(index)), name, _busy(nvml, part)))
    return found


def _busy(nvml: Any, device: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetComputeRunningProcesses(device))
    except nvml.NVMLError_NotSupported:  # a driver that never tells, as that of virtual devices
        return False


def _parts(nvml: Any, device: Any) -> list[Any]:
    """The instances into which a device is divided (MIG), none where it is whole."""
    try:
        if nvml.nvmlDeviceGetMigMode(device)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(device)
    except nvml.NVMLError:  # a device that cannot be divided
        return []
    parts = []
    for index in range(count):
        try:
            parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index))
        except nvml.NVMLError:  # this place holds no instance
            continue
    return parts


def _names(names: tuple[str, ...], word: str) -> bool:
    return word == names[-1] if word.isdigit() else names[0].startswith(word)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
