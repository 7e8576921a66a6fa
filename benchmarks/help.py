"""Help: `tm --help`, and the help of every command, from exec to exit.

    python benchmarks/help.py [--runs 5]

The peer in the same run is `torchx --help`, and `torchx run --help` for the commands.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence

import figures

from trainmaster.cli.tm import COMMANDS


def timed(command: Sequence[str], environ: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def measure(runs: int) -> list[figures.Row]:
    top: dict[str, list[float]] = {"ours": [], "torchx": []}
    of: dict[str, list[float]] = {name: [] for name in COMMANDS}
    peer: list[float] = []
    torchx = str(figures.PEERS / "torchx")
    with figures.place() as environ:
        for command in (
            [figures.TM, "--help"],
            [torchx, "--help"],
            *([figures.TM, name, "--help"] for name in COMMANDS),
        ):
            timed(command, environ)
        for _ in range(runs):
            top["ours"].append(timed([figures.TM, "--help"], environ))
            top["torchx"].append(timed([torchx, "--help"], environ))
            for name in COMMANDS:
                of[name].append(timed([figures.TM, name, "--help"], environ))
            peer.append(timed([torchx, "run", "--help"], environ))
    slowest = max(of, key=lambda name: statistics.median(of[name]))
    return [
        figures.Row("`tm --help`", top["ours"], "s", 0.08, "torchx", top["torchx"]),
        figures.Row(
            f"help of the slowest of {len(of)} commands, `{slowest}`", of[slowest], "s", 0.08, "torchx run", peer
        ),
    ]


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
