"""Two hundred small tasks in one job: from exec of `tm run` until the last program has started, within the default limits.

    python benchmarks/tasks200.py [--runs 3]

Each program adds a line to a file and waits at a gate, a pipe that is opened when all have: so all are alive at once, and
those that wait cost nothing. The peer in the same run is torchrun with 200 processes of the same program.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import figures

TASKS = 200
PROGRAM = 'echo >>"$0/started"; read -r _ <"$0/gate"; exit 0'
LIMIT = 120.0  # s


def started(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> tuple[float, float]:
    """Seconds until all programs had started, and to the command's exit."""
    folder.mkdir()
    os.mkfifo(folder / "gate")
    marks = folder / "started"
    marks.touch()
    with tempfile.TemporaryFile("w+") as said:
        began = time.monotonic()
        process = subprocess.Popen([*command, "sh", "-c", PROGRAM, str(folder)], env=environ, stdout=said, stderr=said)
        try:
            while marks.stat().st_size < TASKS and process.poll() is None and time.monotonic() < began + LIMIT:
                time.sleep(0.01)
            first = time.monotonic() - began
            if marks.stat().st_size == TASKS and process.poll() is None:
                os.close(os.open(folder / "gate", os.O_WRONLY))
                process.wait(LIMIT)
            ended = time.monotonic() - began
        finally:
            process.kill()
            status = process.wait()
        said.seek(0)
        if status:
            raise RuntimeError(f"{command[0]}: {marks.stat().st_size} started, status {status}: {said.read()[-500:]}")
    return first, ended


def measure(runs: int) -> list[figures.Row]:
    ours = [figures.TM, "run", "-n", str(TASKS), "--cores", "0.01", "--memory", "16MiB", "--"]
    peer = [str(figures.BIN / "torchrun"), "--standalone", "--nproc_per_node", str(TASKS), "--no-python"]
    times: dict[str, list[tuple[float, float]]] = {"ours": [], "peer": []}
    with figures.place() as environ, tempfile.TemporaryDirectory() as folder:
        for run in range(runs):
            times["ours"].append(started(ours, environ, Path(folder, f"ours-{run}")))
            times["peer"].append(started(peer, environ, Path(folder, f"peer-{run}")))
    return [
        figures.Row(
            f"{TASKS} tasks started", [a for a, _ in times["ours"]], "s", 10, "torchrun", [a for a, _ in times["peer"]]
        ),
        figures.Row(
            f"{TASKS} tasks, the whole run",
            [b for _, b in times["ours"]],
            "s",
            None,
            "torchrun",
            [b for _, b in times["peer"]],
        ),
    ]


if __name__ == "__main__":
    figures.main(measure, 3, __doc__)
