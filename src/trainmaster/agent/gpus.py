"""Use of the accelerators of a container, through NVML; nothing is loaded where there are none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


class Gpus:
    """The NVIDIA devices among `devices` (UUIDs or indexes; none: all that are visible)."""

    def __init__(self, devices: Sequence[str] = ()) -> None:
        self._devices = [str(device) for device in devices]
        self._handles: list[tuple[int, Any]] | None = None
        self._nvml: Any = None

    def use(self) -> list[dict[str, Any]]:
        """For each device: index, util (0..1), memory and its total (bytes). Empty where nothing can be told."""
        if self._handles is None:
            self._handles = self._found()
        told = []
        for index, handle in self._handles:
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                rate = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0
            except self._nvml.NVMLError:
                continue  # a device that was lost, or one that does not tell (MIG): it is left out
            told.append({"index": index, "util": rate, "memory": int(memory.used), "total": int(memory.total)})
        return told

    def _found(self) -> list[tuple[int, Any]]:
        if not os.path.exists("/dev/nvidiactl"):
            return []
        try:
            import pynvml
        except ImportError:
            return []
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            everything = [(i, pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError:
            return []
        if not self._devices:
            return everything
        return [
            (i, handle) for i, handle in everything if str(i) in self._devices or self._uuid(handle) in self._devices
        ]

    def _uuid(self, handle: Any) -> str:
        uuid = self._nvml.nvmlDeviceGetUUID(handle)
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)
