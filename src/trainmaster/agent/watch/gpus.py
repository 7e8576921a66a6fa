"""Measure the use of a container's accelerators through NVML. Nothing is loaded where there are none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

DRIVER = "/dev/nvidiactl"


class Gpus:
    """The NVIDIA devices among `devices` (UUIDs or indexes)."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = [str(device) for device in devices]
        self._handles: list[tuple[int, Any]] | None = None
        self._nvml: Any = None

    def use(self) -> list[dict[str, Any]]:
        """Return for each device: index, util (0..1), memory and its total (bytes). Empty where NVML shows none."""
        if self._handles is None:
            self._handles = self._open_devices()
        rows = []
        for index, handle in self._handles:
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                rate = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0
            except self._nvml.NVMLError:
                continue  # a device that was lost, or that does not report its use (MIG), is left out
            rows.append({"index": index, "util": rate, "memory": int(memory.used), "total": int(memory.total)})
        return rows

    def _open_devices(self) -> list[tuple[int, Any]]:
        if not os.path.exists(DRIVER):
            return []
        try:
            import pynvml
        except ImportError:
            return []
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError:
            return []
        return [(index, handle) for index in range(count) if (handle := self._handle(index)) is not None]

    def _handle(self, index: int) -> Any:
        """Return the device of that index, if it is one of ours and not lost."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = self._nvml.nvmlDeviceGetUUID(handle)
        except self._nvml.NVMLError:
            return None
        uuid = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
        return handle if str(index) in self._devices or uuid in self._devices else None
