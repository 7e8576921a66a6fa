"""Shared code of the figures: one row a figure, with the spread of ours, of the peer, and of their ratio run by run.

Peer and ours run in turn, so that both meet the machine as it is; each row keeps the load average that its script began
with. Everything runs with compiled bytecode, in an environment that does not forbid it, with directories of its own for
state, so that the jobs of the person who measures stay untouched.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
TM = str(BIN / "tm")
PEERS = BIN.parent / "peers" / "bin"  # see `make peers`


@dataclass
class Row:
    """One figure. `limit` is the most (`least` is the least ratio) that counts as reached; a reason says why it was not."""

    figure: str
    ours: list[float]
    unit: str = "s"
    limit: float | None = None
    peer_name: str = ""
    peer: list[float] = field(default_factory=list)
    least: float | None = None
    note: str = ""
    more_is_better: bool = False  # figures are rates, not times

    @property
    def ratios(self) -> list[float]:
        if self.more_is_better:
            return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]
        return [peer / ours for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def reached(self) -> bool:
        enough = not self.peer or self.least is None or statistics.median(self.ratios) >= self.least
        return enough and (self.limit is None or statistics.median(self.ours) <= self.limit)

    @property
    def target(self) -> str:
        said = [f"<= {self.limit:g} {self.unit}"] if self.limit is not None else []
        return ", ".join(said + ([f">= {self.least:g} x"] if self.least is not None else []))

    def cells(self) -> list[str]:
        peer = f"{self.peer_name} {spread(self.peer, self.unit)}" if self.peer else "-"
        ratio = f"{spread(self.ratios, 'x')}" if self.peer else "-"
        verdict = "yes" if self.reached else "no"
        return [self.figure, spread(self.ours, self.unit), peer, ratio, self.target or "-", verdict, self.note]


HEAD = ["figure", "ours", "peer", "ratio", "target", "reached", "note"]


def spread(values: Sequence[float], unit: str) -> str:
    """Min, median and max."""
    digits = {"s": 3, "x": 2, "%": 2}.get(unit, 1)
    numbers = " / ".join(f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{numbers} {unit}"


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), os.uname().machine
    )
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, Linux {os.uname().release}, Python {python}"


@contextlib.contextmanager
def place() -> Iterator[dict[str, str]]:
    """An environment with compiled bytecode and with directories of its own."""
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH", "TRAINMASTER_JOB")
        environ = {name: value for name, value in os.environ.items() if name not in unwanted}
        yield environ | {
            "TRAINMASTER_STATE_DIR": f"{folder}/s",
            "TRAINMASTER_RUNTIME_DIR": f"{folder}/r",
            "PATH": f"{BIN}:{environ.get('PATH', '')}",
        }


def compile_all() -> None:
    """Bytecode of ours; installed packages have theirs from the installation."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(ROOT / "src")], check=True)


def main(measure: Callable[[int], list[Row]], runs: int, description: str) -> None:
    """Measure, and print a table or, for `run.py`, JSON."""
    wanted = argparse.ArgumentParser(description=description.splitlines()[0])
    wanted.add_argument("--runs", type=int, default=runs)
    wanted.add_argument("--json", action="store_true")
    asked = wanted.parse_args()
    load = os.getloadavg()[0]
    compile_all()
    rows = measure(asked.runs)
    if asked.json:
        print(json.dumps({"load": load, "runs": asked.runs, "rows": [asdict(row) for row in rows]}))
        return
    print(f"{machine()}; load average at the start {load:.2f}; {asked.runs} runs; min / median / max")
    for row in rows:
        print(" | ".join(row.cells()))
    sys.exit(not all(row.reached for row in rows))
