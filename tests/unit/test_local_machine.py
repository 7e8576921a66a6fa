"""What the machine has: its cores and memory as control groups leave them, and its accelerators as the driver tells of them."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from gpus import driver
from local_machine import GIB

from trainmaster.host import machine


def test_this_machine() -> None:
    found = machine.machine(gpus=False)
    assert 0 < found.cores <= (os.cpu_count() or 0)
    assert 0 < found.memory < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, 1.0),
        ({"cpu.cfs_quota_us": "25000\n", "cpu.cfs_period_us": "100000\n"}, 0.25),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, 1.0),
        ({}, 1.0),
    ],
)
def test_a_quota_limits_the_cores(
    files: dict[str, str], cores: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "ancestry", lambda controller: [tmp_path])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert machine.cores() == cores


@pytest.mark.parametrize("name", ["memory.max", "memory.limit_in_bytes"])
def test_a_group_limits_the_memory_and_a_part_is_reserved(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text(f"{GIB}\n")
    monkeypatch.setattr(machine, "ancestry", lambda controller: [tmp_path])
    assert machine.memory() == GIB - GIB // 20


def test_a_device_with_a_foreign_process_is_taken() -> None:
    found = machine.visible_devices(driver("GPU-a", "GPU-b", busy=("GPU-b",)), None)
    assert found == (("GPU-a", "GPU-b"), frozenset(["GPU-b"]))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("1", ("GPU-b2",)), ("GPU-a", ("GPU-a1",)), ("0,1", ("GPU-a1", "GPU-b2")), ("", ()), ("7", ())],
)
def test_what_the_submitter_may_see_is_all_there_is(visible: str, expected: tuple[str, ...]) -> None:
    assert machine.visible_devices(driver("GPU-a1", "GPU-b2"), visible)[0] == expected


def test_a_divided_device_is_its_parts() -> None:
    found = machine.visible_devices(driver("GPU-a", "GPU-b", busy=("MIG-2",), GPU_b=["MIG-1", "MIG-2"]), None)
    assert found == (("GPU-a", "MIG-1", "MIG-2"), frozenset(["MIG-2"]))


def test_a_device_that_is_lost_is_left_out() -> None:
    found = driver("GPU-a", "GPU-b", "GPU-c", busy=("GPU-c",))
    found.lost, found.mute = ("GPU-a",), ("GPU-b",)
    assert machine.visible_devices(found, "0,1,2") == (("GPU-b", "GPU-c"), frozenset(["GPU-c"]))


def test_a_driver_that_hangs_is_asked_once_and_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = threading.Event(), []

    def begin() -> None:
        asked.append(1)
        answers.wait(60)

    hanging = driver("GPU-a")
    hanging.nvmlInit = begin
    monkeypatch.setitem(sys.modules, "pynvml", hanging)
    monkeypatch.setattr(machine, "has_driver", lambda: True)
    monkeypatch.setattr(machine, "DRIVER_WITHIN", 0.05)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for _ in range(2):
        with pytest.raises(machine.DriverSilent, match="the NVIDIA driver has not answered for"):
            machine.accelerators()
    assert len(asked) == 1
    answers.set()
    monkeypatch.setattr(machine, "DRIVER_WITHIN", 60.0)
    assert machine.accelerators() == (("GPU-a",), frozenset())
