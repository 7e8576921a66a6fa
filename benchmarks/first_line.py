"""Start of a local job of two workers: from exec of the command to the first lines of both programs, as its reader sees them.

    python benchmarks/first_line.py [--runs 15]

The program prints one line. Ours is `tm run -n 2 -- python hello.py`; the peers, in the same run with the same program
and interpreter, are torchrun with two processes, and torchx with its local_cwd scheduler in two ways: `dist.ddp -j 1x2`,
which like ours forms a group with ranks, and `utils.sh`, which starts two processes that know nothing of each other. The
time counts until the second program's line arrived at the other end of the command's output. A run of a no-op job counts
until the command has exited.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import figures

LIMIT = 60.0  # s of one run
SAID = b"hello from a worker"


def first_lines(command: Sequence[str], environ: Mapping[str, str], folder: str) -> tuple[float, float]:
    """Seconds to the second program's line, and to the command's exit."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        bufsize=0, start_new_session=True,
    )  # fmt: skip
    alarm = threading.Timer(LIMIT, _end, (process,))
    alarm.start()
    assert process.stdout is not None
    seen, at, said = 0, 0.0, []
    for line in process.stdout:
        said.append(line)
        if SAID in line:
            seen += line.count(SAID)  # torchrun's programs write unbuffered: two may share a line
            at = time.perf_counter() - began if seen == 2 else at
    status = process.wait()
    ended = time.perf_counter() - began
    alarm.cancel()
    if status or seen != 2:
        raise RuntimeError(f"{command[0]} ended with {status}: {b''.join(said[-10:]).decode(errors='replace')}")
    return at, ended


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def measure(runs: int) -> list[figures.Row]:
    times: dict[str, list[tuple[float, float]]] = {}
    with figures.place() as environ, tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "hello.py"
        program.write_text(f"print({SAID.decode()!r}, flush=True)\n")
        torchx = [str(figures.PEERS / "torchx"), "run", "-s", "local_cwd", "--wait", "--log"]
        commands = {
            "ours": [figures.TM, "run", "-n", "2", "--", sys.executable, str(program)],
            "torchrun": [str(figures.BIN / "torchrun"), "--nproc_per_node", "2", str(program)],
            "torchx dist.ddp": [*torchx, "dist.ddp", "-j", "1x2", "--script", "hello.py"],
            "torchx utils.sh": [*torchx, "utils.sh", "--num_replicas", "2", sys.executable, str(program)],
        }
        for run in range(-1, runs):  # the first of each warms the disk's cache
            for name, command in commands.items():
                taken = first_lines(command, environ, folder)
                if run >= 0:
                    times.setdefault(name, []).append(taken)
    firsts = {name: [first for first, _ in taken] for name, taken in times.items()}
    ends = {name: [end for _, end in taken] for name, taken in times.items()}
    noted = {"torchx utils.sh": "a reference: no group, no ranks, no log kept"}
    rows = []
    for peer in list(commands)[1:]:
        least = None if peer in noted else 6.0
        note = noted.get(peer, "")
        rows.append(figures.Row("first lines of 2 workers", firsts["ours"], "s", 0.20, peer, firsts[peer], least, note))
        rows.append(
            figures.Row("whole run of a no-op job of 2 workers", ends["ours"], "s", 0.4, peer, ends[peer], None, note)
        )
    return rows


if __name__ == "__main__":
    figures.main(measure, 15, __doc__)
