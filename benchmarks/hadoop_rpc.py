"""Calls a second on one connection to a real ResourceManager, by ours and by Hadoop's own Java client.

    python benchmarks/hadoop_rpc.py [--runs 5] [--calls 5000]

The call is getClusterMetrics, the cheapest that YARN's clients have. One after the other it measures the way there and
back; with many in flight, what a client spends on a call. Java has a thread for each call in flight and one connection
for all, after 10,000 calls that are not counted; its JVM's start is not counted either. The cluster is that of
HADOOP_CONF_DIR, else one that is started for this and ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))

from trainmaster.clusters import hadoop  # noqa: E402
from trainmaster.clusters.hadoop import jars  # noqa: E402
from trainmaster.hadoop.conf import load  # noqa: E402
from trainmaster.hadoop.security.auth import Simple  # noqa: E402
from trainmaster.hadoop.yarn import ResourceManager  # noqa: E402

LEAST = 3_000  # calls/s, with many in flight
IN_FLIGHT = (1, 16, 100)


def main() -> None:
    wanted = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    wanted.add_argument("--runs", type=int, default=5)
    wanted.add_argument("--calls", type=int, default=5_000)
    asked = wanted.parse_args()
    with cluster() as conf_dir:
        told = [(ours(conf_dir, asked.calls), java(conf_dir, asked.calls)) for _ in range(asked.runs)]
    print(f"calls/s on one connection, {asked.runs} runs in turn; min / median / max\n")
    print(f"{'in flight':>9}  {'ours':>24}  {'Java':>24}  {'ratio':>5}")
    for at, count in enumerate(IN_FLIGHT):
        mine, theirs = [one[at] for one, _ in told], [other[at] for _, other in told]
        ratio = statistics.median(one / other for one, other in zip(mine, theirs, strict=True))
        print(f"{count:>9}  {spread(mine):>24}  {spread(theirs):>24}  {ratio:>5.2f}")
    reached = max(statistics.median(one[at] for one, _ in told) for at in range(len(IN_FLIGHT)))
    print(f"\ntarget: >= {LEAST:,} calls/s: {'reached' if reached >= LEAST else 'not reached'}")
    print(f"CPU of ours a call with {IN_FLIGHT[-1]} in flight: {statistics.median(one[-1] for one, _ in told):.0f} µs")
    sys.exit(reached < LEAST)


def spread(values: list[float]) -> str:
    return " / ".join(f"{value:,.0f}" for value in (min(values), statistics.median(values), max(values)))


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """The configuration of a cluster that runs."""
    if "HADOOP_CONF_DIR" in os.environ:
        yield os.environ["HADOOP_CONF_DIR"]
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "hadoop"
        try:
            yield str(hadoop.up(hadoop.Settings(), folder=place).conf_dir)
        finally:
            hadoop.down(folder=place)


def ours(conf_dir: str, calls: int) -> list[float]:
    """Calls a second for each number in flight, and the CPU of a call with the most in flight, in µs."""

    async def run() -> list[float]:
        async with ResourceManager.of(load(conf_dir), Simple("bench")) as manager:
            await manager.get_cluster_metrics()
            found, spent = [], 0.0
            for count in IN_FLIGHT:
                left = iter(range(calls))

                async def caller(left: Iterator[int] = left) -> None:
                    for _ in left:
                        await manager.get_cluster_metrics()

                begin, spent = time.perf_counter(), cpu()
                await asyncio.gather(*[caller() for _ in range(count)])
                found.append(calls / (time.perf_counter() - begin))
            return [*found, (cpu() - spent) / calls * 1e6]

    return asyncio.run(run())


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def java(conf_dir: str, calls: int) -> list[float]:
    command = [
        jars.java(),
        "-Xmx256m",
        "-cp",
        f"{conf_dir}:{jars.jars()}/*",
        str(HERE / "HadoopCalls.java"),
        str(calls),
    ]
    done = subprocess.run([*command, *map(str, IN_FLIGHT)], stdout=subprocess.PIPE, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


if __name__ == "__main__":
    main()
