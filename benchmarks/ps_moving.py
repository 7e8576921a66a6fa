"""The number of parameter servers changes while a worker pushes: how long no push is answered, and how long the move takes.

    python benchmarks/ps_moving.py [--runs 5]

One server with 1M rows of 16 float32 with Adam's slots (192 MB), with a log and checkpoints in one directory; batches of 26 x 512 uniform
ids, each push behind 0.05 s of the worker's own work. A second server joins, and leaves again. The figure is the longest time from one
acknowledged push to the next while that goes on, less the worker's own work. The peer is what would be done without moves: the servers are
killed, and begun again as two (as one), each of which restores its part of the checkpoint and the log.

The move's whole time is from the start of the second server's process, with its imports, to the first push of the new placement.

At last, without servers: how much more the fullest of N servers has of a batch's distinct ids than the mean of all, where ids are Zipf's.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import figures
import numpy

sys.path.insert(0, str(figures.ROOT / "src"))

from trainmaster.ps.client import Client, Identity, TableSpec, Updates

ROWS, DIMENSION, BATCH, OWN_WORK = 1_000_000, 16, 26 * 512, 0.05
SERVERS = (2, 4, 8)
BATCHES = 40  # of which the fullest server's share is the mean


class Group:
    """Servers of one directory, and a worker that pushes all the time and notes when pushes were acknowledged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "token").write_text("a token")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.begin(0, 1)
        self.client = Client([self._address(0)], Identity("a token"))
        self.client.define({}, {"table": TableSpec(DIMENSION)}, {"name": "Adam"}, Updates(tolerance=None))
        self._generator = numpy.random.default_rng(3)
        self._gradients = self._generator.normal(0, 0.01, (BATCH, DIMENSION)).astype(numpy.float32)
        for begin in range(0, ROWS, BATCH):
            self._push(numpy.arange(begin, min(begin + BATCH, ROWS)))
        self._await_checkpoint()
        self.acknowledged: list[float] = []
        self._is_over = threading.Event()
        self._worker = threading.Thread(target=self._work)
        self._worker.start()

    def _address(self, index: int) -> str:
        return f"unix:{self._folder}/{index}"

    def begin(self, index: int, servers: int) -> None:
        command = [sys.executable, "-m", "trainmaster.ps", "--index", str(index), "--servers", str(servers), "--leave"]
        command += ["--listen", self._address(index), "--leader", self._address(0)]
        command += ["--token-file", str(self._folder / "token"), "--directory", str(self._folder / "ckpt")]
        environ = {**os.environ, "PYTHONPATH": str(figures.ROOT / "src")}
        self._processes[index] = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)

    def begin_again(self, servers: int) -> None:
        """Kill all servers, and begin so many."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._processes.clear()
        for index in range(servers):
            self.begin(index, servers)

    def leave(self, index: int) -> None:
        self._processes.pop(index).terminate()

    def _push(self, ids: numpy.ndarray) -> None:
        self.client.push(self.client.version, rows={"table": (ids, self._gradients[: len(ids)])})

    def _work(self) -> None:
        while not self._is_over.is_set():
            time.sleep(OWN_WORK)
            self._push(self._generator.choice(ROWS, BATCH, replace=False, shuffle=False))
            self.acknowledged.append(time.monotonic())

    def _await_checkpoint(self) -> None:
        version = self.client.checkpoint()
        while self.client.status()[0]["completed"] < version:
            time.sleep(0.05)

    def change(self, act: Callable[[], None], servers: int) -> tuple[float, float]:
        """Have the number of servers change by `act`, and return seconds: without an answer at most, and until a push by the next ones."""
        while not self.acknowledged:
            time.sleep(0.005)
        begin = time.monotonic()
        act()
        while self.client.servers != servers:
            time.sleep(0.005)
        count = len(self.acknowledged)
        while len(self.acknowledged) < count + 2:
            time.sleep(0.005)
        times = [moment for moment in self.acknowledged if moment >= begin - 1.0]
        pauses = [after - before for before, after in itertools.pairwise(times)]
        return max(pauses) - OWN_WORK, self.acknowledged[count] - begin

    def close(self) -> None:
        self._is_over.set()
        self._worker.join()
        self.client.close()
        for process in self._processes.values():
            process.kill()
            process.wait()


def changed(is_live: bool) -> dict[str, float]:
    """Return seconds by figure, of one growth and one shrinking."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Group(Path(folder))) as group:
        if is_live:
            pause, whole = group.change(lambda: group.begin(1, 1), 2)
            back, back_whole = group.change(lambda: group.leave(1), 1)
        else:
            pause, whole = group.change(lambda: group.begin_again(2), 2)
            back, back_whole = group.change(lambda: group.begin_again(1), 1)
    return {"1 to 2": pause, "2 to 1": back, "all 1 to 2": whole, "all 2 to 1": back_whole}


def fullest(servers: int) -> list[float]:
    """Return, of each batch of 26 fields, by how many percent the fullest server has more distinct ids than the mean of all."""
    generator, ratios = numpy.random.default_rng(1), []
    for _ in range(BATCHES):
        values = generator.zipf(1.2, (512, 26)) % 1_000_000
        ids = numpy.unique((values * 26 + numpy.arange(26)) % 1_000_000)
        counts = numpy.bincount(ids % servers, minlength=servers)
        ratios.append(100 * float(counts.max() / counts.mean() - 1))
    return ratios


def measure(runs: int) -> list[figures.Row]:
    live, again = [], []
    for _ in range(runs):
        live.append(changed(is_live=True))
        again.append(changed(is_live=False))
    rows = []
    for change in ("1 to 2", "2 to 1"):
        for prefix, figure in (("", "no push is answered"), ("all ", "until a push by the next servers")):
            ours, theirs = ([run[prefix + change] for run in kind] for kind in (live, again))
            rows.append(
                figures.Row(f"{change} servers: {figure}", ours, peer_name="killed and begun again", peer=theirs)
            )
    for servers in SERVERS:
        rows.append(
            figures.Row(f"distinct ids of the fullest of {servers} servers", fullest(servers), "% above the mean")
        )
    return rows


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
