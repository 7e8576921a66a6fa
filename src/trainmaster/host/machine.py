"""Measure this machine's present capacity for jobs.

Cores are those this process may run on, or fewer where a control group sets a quota. Memory is the machine's, or less where a control group
limits it, minus a reserve for the system, the masters and the user's own session. Accelerators are NVIDIA's, as the driver lists them. A
device on which any process computes counts as busy, whoever's it is, since sharing a device surprises both users. A device that the driver
cannot describe is left out. A driver that hangs is asked in one thread, however many wait for it, and nobody waits for long.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import attrs

from trainmaster.core.errors import EngineFailed
from trainmaster.core.plain import Plain
from trainmaster.host.limits import ancestry

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")  # what NVIDIA's driver shows; the last under WSL
_DEVICE = re.compile(r"nvidia\d+|dxg")  # its devices in /dev
_RESERVE, _RESERVED_PART = 1 << 30, 20  # at most 1 GiB, at most a twentieth
_PEOPLE = range(1000, 60001)  # user ids; those of services are outside (login.defs, UID_MIN and UID_MAX)
DRIVER_WITHIN = 20.0  # s for the driver to answer; a driver that wakes many sleeping devices takes several

Devices = tuple[tuple[str, ...], frozenset[str]]


class DriverSilent(EngineFailed):
    """The driver of the accelerators does not answer."""


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
    return min([allowed, *(round(quota, 2) for _, quota in _quotas())])


def _quotas() -> Iterator[tuple[Path, float]]:
    """Yield the control groups that limit this process' use of cores, with the limit of each."""
    for folder in ancestry("cpu"):
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        elif (folder / "cpu.cfs_quota_us").exists():
            quota, period = _line(folder / "cpu.cfs_quota_us"), _line(folder / "cpu.cfs_period_us")
        else:
            continue
        if quota not in ("max", "-1"):
            yield folder, int(quota) / int(period)


class IdleCores:
    """Measures how many of the cores that this process may use nobody uses."""

    def __init__(self) -> None:
        self._before = self._look()

    def since_last(self) -> float:
        """Return the mean number of idle cores since the last call, or since this was made."""
        before, self._before = self._before, self._look()
        seconds = self._before[0] - before[0]
        if seconds <= 0 or len(before) != len(self._before):
            return 0.0
        return min((now - then) / seconds for now, then in zip(self._before[1:], before[1:], strict=True))

    @staticmethod
    def _look() -> tuple[float, ...]:
        """Return a clock, and the core-seconds that were idle by then: on the cores, and within each quota."""
        cpus, tick = os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK")
        clock, idle = time.monotonic(), 0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *times = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
                idle += int(times[3]) + int(times[4])  # idle, and waiting for a disk
        return (clock, idle / tick, *(clock * quota - _used(folder) for folder, quota in _quotas()))


def _used(folder: Path) -> float:
    """Return the core-seconds that a control group has used."""
    with contextlib.suppress(OSError):
        for line in (folder / "cpu.stat").read_text().splitlines():
            if line.startswith("usage_usec "):
                return int(line.split()[1]) / 1e6
        return int(_line(folder / "cpuacct.usage")) / 1e9
    return 0.0


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


_question: tuple[float, Future[Devices]] | None = None  # the newest to the driver: when it was asked, and its answer
_asking = threading.Lock()


def has_driver() -> bool:
    """Tell whether programs may find NVIDIA devices here, without asking the driver: that may take seconds."""
    return any(map(os.path.exists, _DRIVER))


def shows_devices() -> bool:
    """Tell whether NVIDIA devices are to be seen here. In a container without any, the driver is, and its devices are not."""
    return has_driver() and any(map(_DEVICE.fullmatch, os.listdir("/dev")))


def accelerators() -> Devices:
    """Return the NVIDIA devices' ids, as CUDA_VISIBLE_DEVICES takes them, and the ids of those on which something computes now. Raises
    DriverSilent.
    """
    global _question
    if not has_driver():
        return (), frozenset()
    with _asking:
        if _question is None or _question[1].done():
            _question = time.monotonic(), Future()
            threading.Thread(target=_ask_driver, args=(_question[1],), name="driver", daemon=True).start()
        began, answer = _question
    try:
        return answer.result(max(0.0, began + DRIVER_WITHIN - time.monotonic()))
    except TimeoutError:
        silent = time.monotonic() - began
        raise DriverSilent(
            f"the NVIDIA driver has not answered for {silent:.0f} s", mend="see whether nvidia-smi answers", anchor="devices"
        ) from None  # fmt: skip


def _ask_driver(answer: Future[Devices]) -> None:
    try:
        answer.set_result(_driver_devices())
    except BaseException as error:  # noqa: BLE001  raised where it is waited for
        answer.set_exception(error)


def _driver_devices() -> Devices:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # a driver's files without a driver: nothing can be computed on it
        return (), frozenset()
    try:
        return visible_devices(pynvml, os.environ.get(VISIBLE))
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
    return _name_of(os.getuid())


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def other_users() -> list[str]:
    """Return the names of the other people who have processes on this machine, as far as /proc shows these."""
    uids = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            uids.add(path.stat().st_uid)
    return sorted(_name_of(uid) for uid in uids & set(_PEOPLE) - {os.getuid()})


def login_name() -> str:
    """Return the same, but as the user's environment has it, where it does (LOGNAME, USER), as systems without passwords take it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return user_name()
