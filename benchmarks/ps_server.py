"""Rows that one parameter server gives and trains in a second of its own core, by shared memory and by loopback TCP with TLS.

    python benchmarks/ps_server.py [--runs 5]

One server process and one client process, a table of 1M rows of 16 float32 with Adam's slots, in batches of 26 x 512 uniform ids that
differ from each other. The seconds are the server's own of a processor (user and system), as /proc has them: the client shares the
machine. The note has rows by the clock. The server keeps a log of the pushes, unless the figure says so. Then 1 GB of tables is
checkpointed while pushes go on: the peer writes the same file in a process that does nothing else meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import figures
import numpy

sys.path.insert(0, str(figures.ROOT / "src"))

from trainmaster.client.submit.ahead import certificate_and_key
from trainmaster.ps.client import Client, Identity, TableSpec, Updates

ROWS, DIMENSION, BATCH, BATCHES = 1_000_000, 16, 26 * 512, 60
WANTED = {"pulled": 2.0, "pushed": 1.0}  # million rows/s of a core
LARGE = 5_000_000  # rows of 192 bytes: 1 GB
TICK = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def server(way: str, has_log: bool, certificate: str, key: str) -> Iterator[tuple[int, Client, Path]]:
    """Run a server, and return its process, a client and its folder."""
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as name:
        folder = Path(name)
        (folder / "token").write_text("token")
        (folder / "certificate.pem").write_text(certificate)
        (folder / "key.pem").write_text(key)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        address = f"unix:{folder}/socket" if way == "shared memory" else f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "trainmaster.ps", "--listen", address, "--token-file", str(folder / "token")]
        command += ["--certificate", str(folder / "certificate.pem"), "--key", str(folder / "key.pem")]
        command += ["--directory", str(folder / "ckpt")] if has_log else []
        environ = {**os.environ, "PYTHONPATH": str(figures.ROOT / "src")}
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
        client = Client([address], Identity("token", certificate))
        try:
            yield process.pid, client, folder
        finally:
            client.close()
            process.kill()
            process.wait()


def processor_time(process: int) -> float:
    """Return the seconds of a processor that a process has used."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICK


def fill(client: Client, rows: int) -> Any:
    """Make a table of so many rows with slots, and return its ids in random order."""
    client.define({}, {"table": TableSpec(DIMENSION)}, {"name": "Adam"}, Updates(tolerance=None))
    ids = numpy.random.default_rng(5).permutation(rows) * 7919
    gradients = numpy.random.default_rng(6).normal(0, 0.01, (2**17, DIMENSION)).astype(numpy.float32)
    for begin in range(0, rows, 2**17):
        part = ids[begin : begin + 2**17]
        client.push(client.version, rows={"table": (part, gradients[: len(part)])})
    return ids


def rates(way: str, has_log: bool, certificate: str, key: str) -> dict[str, tuple[float, float]]:
    """Return million rows in a second of the server's core, and by the clock, by what was done."""
    with server(way, has_log, certificate, key) as (process, client, _):
        ids = fill(client, ROWS)
        generator = numpy.random.default_rng(7)
        batches = [numpy.sort(generator.choice(ids, BATCH, replace=False)) for _ in range(BATCHES)]
        gradients = numpy.random.default_rng(6).normal(0, 0.01, (BATCH, DIMENSION)).astype(numpy.float32)
        calls: dict[str, Callable[[Any], Any]] = {
            "pulled": lambda batch: client.pull(False, {"table": batch}),
            "pushed": lambda batch: client.push(client.version, rows={"table": (batch, gradients)}),
        }
        results = {}
        for done, call in calls.items():
            call(batches[0])
            before, begin = processor_time(process), time.perf_counter()
            for batch in batches * 4:
                call(batch)
            core, clock = processor_time(process) - before, time.perf_counter() - begin
            results[done] = 4 * BATCHES * BATCH / core / 1e6, 4 * BATCHES * BATCH / clock / 1e6
        return results


def stalls(certificate: str, key: str) -> tuple[float, float]:
    """Return seconds that training lost to a checkpoint of 1 GB, and seconds that writing it in place takes."""
    with server("shared memory", True, certificate, key) as (_, client, folder):
        ids = fill(client, LARGE)
        generator = numpy.random.default_rng(8)
        gradients = numpy.random.default_rng(6).normal(0, 0.01, (BATCH, DIMENSION)).astype(numpy.float32)

        def push() -> float:
            begin = time.perf_counter()
            client.push(client.version, rows={"table": (generator.choice(ids, BATCH, replace=False), gradients)})
            return time.perf_counter() - begin

        push()
        usual = statistics.median(push() for _ in range(30))
        begin = time.perf_counter()
        version = client.checkpoint()
        stalled = time.perf_counter() - begin
        while client.status()[0]["completed"] < version:
            stalled += max(0.0, push() - usual)
        shares = list(folder.glob("ckpt/version-*/variables-0-of-1.ckpt"))
        return stalled, written_in_place(shares[0])


def written_in_place(share: Path) -> float:
    """Return the seconds that it takes to write what is in a share, in the process that has it."""
    from trainmaster.ps.shard import Shard
    from trainmaster.ps.storage.checkpoints import Share, load_share

    shard = Shard(0, 1)
    load_share(str(share), shard)
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        begin = time.perf_counter()
        Share(shard).write(folder)
        return time.perf_counter() - begin


def measure(runs: int) -> list[figures.Row]:
    certificate, key = certificate_and_key()
    ways = {
        "by shared memory": ("shared memory", True),
        "by shared memory, without a log": ("shared memory", False),
        "by TCP with TLS": ("TCP", True),
    }
    results: dict[str, list[dict[str, tuple[float, float]]]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, way in ways.items():
            results[name].append(rates(*way, certificate, key))
    rows = []
    for done, wanted in WANTED.items():
        for name, measured in results.items():
            ours = [result[done][0] for result in measured]
            clock = statistics.median(result[done][1] for result in measured)
            peer = [result[done][0] for result in results["by shared memory"]] if "TCP" in name else []
            rows.append(
                figures.Row(
                    f"rows {done}, {name}",
                    ours,
                    "M/s",
                    None,
                    "shared memory" if peer else "the figure wanted",
                    peer or [wanted] * runs,
                    0.6 if peer else 1.0,
                    f"{clock:.2f} M/s by the clock, one client",
                    more_is_better=True,
                )
            )
    pairs = [stalls(certificate, key) for _ in range(max(1, runs // 2))]
    ours, peer = [stall for stall, _ in pairs], [whole for _, whole in pairs]
    rows.append(figures.Row("training stalled by a checkpoint of 1 GB", ours, "s", None, "in place", peer, 1 / 0.08))
    return rows


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
