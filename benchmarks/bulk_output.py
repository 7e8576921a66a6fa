"""Much output through `tm run` into a pipe: 1 GB in lines of 80 bytes, from its first byte to its last at the pipe's other end.

    python benchmarks/bulk_output.py [--runs 3]

Ours is a job of one task, whose bytes must arrive exactly, and one of two tasks that print half each, whose lines are led by
their task. The peers, in the same run with the same program, are a plain pipe through `cat` and torchrun with one process,
which keeps no log: its program writes into the pipe by itself. 200 MB/s are wanted, 5 s for all.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import figures

SIZE = 1_000_000_000
LIMIT = SIZE / 200e6
PROGRAM = """
import os, sys
line = b"%06d " + b"x" * 72 + b"\\n"
block = memoryview(b"".join(line % n for n in range(12_500)))
for _ in range(int(sys.argv[1]) // len(block)):
    rest = block
    while rest:
        rest = rest[os.write(1, rest):]
"""


def taken(command: Sequence[str], environ: Mapping[str, str], folder: str) -> tuple[float, int, str]:
    """Seconds from the first byte to the end of the output, its bytes, and its digest."""
    process = subprocess.Popen(
        command, env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    digest, size, buffer, began = hashlib.md5(usedforsecurity=False), 0, bytearray(1 << 20), 0.0
    while count := process.stdout.readinto1(buffer):  # type: ignore[attr-defined]
        began = began or time.perf_counter()
        size += count
        digest.update(memoryview(buffer)[:count])
    ended = time.perf_counter()
    if process.wait():
        raise RuntimeError(f"{command[0]} failed: {process.stderr.read().decode() if process.stderr else ''}")
    return ended - began, size, digest.hexdigest()


def measure(runs: int) -> list[figures.Row]:
    times: dict[str, list[float]] = {}
    with figures.place() as environ, tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "prints.py"
        program.write_text(PROGRAM)
        whole, half = [str(program), str(SIZE)], [str(program), str(SIZE // 2)]
        commands = {
            "one": [figures.TM, "run", "--", sys.executable, *whole],
            "two": [figures.TM, "run", "-n", "2", "--", sys.executable, *half],
            "cat": ["sh", "-c", f"{sys.executable} {program} {SIZE} | cat"],
            "torchrun": [str(figures.BIN / "torchrun"), "--nproc_per_node", "1", *whole],
        }
        for _ in range(runs):
            digests = {}
            for name, command in commands.items():
                seconds, size, digests[name] = taken(command, environ, folder)
                times.setdefault(name, []).append(seconds)
                if size != SIZE + (SIZE // 80 * len("worker:0 ") if name == "two" else 0):
                    raise RuntimeError(f"{name}: {size} bytes arrived")
                shutil.rmtree(Path(environ["TRAINMASTER_STATE_DIR"]) / "jobs", ignore_errors=True)
            if digests["one"] != digests["cat"]:
                raise RuntimeError("other bytes arrived than were printed")
    one, two = "1 GB of one task, byte-exact", "1 GB of two tasks, each line led by its task"
    rows = [figures.Row(one, times["one"], "s", LIMIT, peer, times[peer]) for peer in ("cat", "torchrun")]
    return [*rows, figures.Row(two, times["two"], "s", LIMIT, "cat", times["cat"])]


if __name__ == "__main__":
    figures.main(measure, 3, __doc__)
