"""A checkpoint of 1 GB by `trainmaster.runtime.checkpoint`: how long training stops, and what it loses while the state is stored.

    python benchmarks/checkpoint_memory.py [--runs 5]

256 tensors of 4 MiB, warm: the slots of memory were made by the saves before. The stall is the time in `checkpoint.save`, its copy with one
thread, as torch has; the copy with two threads is shown too. The peer in the same run is `torch.save` to the same disk. Lost while storing:
the steps of a training loop of one thread that run meanwhile, less as many steps at the median of those before and after; the peer is
`torch.save` in a thread. That needs a core that is free: on a busy machine the figure is the others' noise.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import figures

TENSORS, SIZE = 256, 1024 * 1024  # of 4 bytes each
STEPS = 40  # of the loop before and after, for its own pace


def timed(act: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def lost(step: Callable[[], Any], begin: Callable[[], Any], is_over: Callable[[], bool]) -> float:
    """The seconds that steps lose from `begin` until it is over."""
    pace = [timed(step) for _ in range(STEPS)]
    begin()
    meanwhile = []
    while not is_over():
        meanwhile.append(timed(step))
    pace += [timed(step) for _ in range(STEPS)]
    return max(0.001, sum(meanwhile) - len(meanwhile) * statistics.median(pace))


def measure(runs: int) -> list[figures.Row]:
    import torch

    from trainmaster.runtime import checkpoint
    from trainmaster.runtime.states import memory_slots, stored_states

    torch.set_num_threads(1)
    state = {f"layer.{number}": torch.randn(SIZE) for number in range(TENSORS)}
    left = torch.randn(384, 384)
    taken: dict[str, list[float]] = {name: [] for name in ("one", "two", "save", "lost", "thread")}
    parallel = memory_slots._PARALLEL

    def step() -> None:
        for _ in range(10):
            left @ left

    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        number = 0

        def save(from_bytes: float = parallel, every: float = 3600.0) -> None:
            nonlocal number
            number += 1
            memory_slots._PARALLEL = from_bytes  # type: ignore[assignment]
            checkpoint.save(number, {"model": state}, at=f"{folder}/ours", keep=1, every=every)

        def is_stored() -> bool:
            newest = next(stored_states.headers(stored_states.Folder(f"{folder}/ours")), {"step": 0})
            return bool(newest["step"] == number)

        for _ in range(3):  # the slots are made
            save()
            checkpoint.wait()
        path = Path(folder, "peer.pt")
        for _ in range(runs):
            taken["save"].append(timed(lambda: torch.save(state, path)))
            path.unlink()
            taken["one"].append(timed(lambda: save(float("inf"))))
            taken["two"].append(timed(save))
            checkpoint.wait()
            thread = threading.Thread(target=torch.save, args=(state, path))
            taken["thread"].append(lost(step, thread.start, lambda thread=thread: not thread.is_alive()))  # type: ignore[misc]
            path.unlink()
            save(every=0.0)
            checkpoint.wait()  # the place's pause is over
            save(every=0.0)
            taken["lost"].append(lost(step, lambda: None, is_stored))
    peer = "torch.save"
    return [
        figures.Row("stall of 1 GB, copied with one thread", taken["one"], "s", None, peer, taken["save"], 12.5),
        figures.Row("the same, with two threads", taken["two"], "s", None, peer, taken["save"], 12.5),
        figures.Row("lost while 1 GB is stored", taken["lost"], "s", 0.1, f"{peer} in a thread", taken["thread"]),
    ]


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
