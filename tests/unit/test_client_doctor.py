"""What a machine and its accelerators look like to a user."""

from __future__ import annotations

import pytest

from trainmaster.client.jobs import doctor
from trainmaster.client.watch.watched import Watching, task_cells
from trainmaster.engines.local.queue import Capacity
from trainmaster.host import machine


@pytest.mark.parametrize(
    ("devices", "taken", "told"),
    [((), (), "0 GPUs"), (("GPU-a",), (), "1 GPU"), (("GPU-a", "GPU-b"), ("GPU-b",), "2 GPUs (1 in use)")],
)
def test_doctor_counts_the_gpus(
    devices: tuple[str, ...], taken: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "machine", lambda: Capacity(2.0, 8 << 30, devices, frozenset(taken)))
    (found,) = [finding for finding in doctor.examined() if finding.check == "machine"]
    assert (found.state, found.text) == (doctor.GOOD, f"2 cores, 8 GiB, {told}")


def test_a_live_row_shows_how_busy_gpus_are_in_percent() -> None:
    task = {"task": "worker:0", "state": "running", "phase": "running", "attempt": 1, "started": 10.0}
    gpus = [{"index": 0, "util": 0.97}, {"index": 1, "util": 0.0}]
    assert task_cells(Watching("digits-abcdef"), {**task, "gpus": gpus}, 20.0)[-1] == "97 % 0 %"
