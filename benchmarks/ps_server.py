"""Rows that one parameter server gives and trains in a second of its own core, by shared memory and by loopback TCP with TLS.

    python benchmarks/ps_server.py [--runs 5]

One server process and one client process, a table of 1M rows of 16 float32 with Adam's slots, in batches of 26 x 512 uniform ids that
differ from each other. The seconds are the server's own of a processor (user and system), as /proc has them: the client shares the
machine. The note has rows by the clock. The server keeps a log of the pushes, unless the figure says so.

Then 1 GB of tables is checkpointed while pushes of other rows each time go on: once as training has them, each behind 0.1 s of the
worker's own work, which takes a core, and once without a pause. The stall is the time of all these pushes beyond the mean of those before
and after, and that of the request. The peer writes the same file in a process that does nothing else meanwhile.

At last a server is killed while two clients push, and begun again at once. The time is that until both clients had another push
acknowledged, less that in which another process loads the server's share.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import operator
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import figures
import numpy

sys.path.insert(0, str(figures.ROOT / "src"))

from trainmaster.client.submit.ahead import certificate_and_key
from trainmaster.ps.client import Client, Identity, TableSpec, Updates
from trainmaster.ps.shard import Shard
from trainmaster.ps.storage.checkpoints import Share, load_share, manifests

ROWS, DIMENSION, BATCH, BATCHES = 1_000_000, 16, 26 * 512, 60
WANTED = {"pulled": 2.0, "pushed": 1.0}  # million rows/s of a core
OWN_WORK = 0.1  # s of a worker between two pushes
LARGE = 5_000_000  # rows of 192 bytes: 1 GB
TICK = os.sysconf("SC_CLK_TCK")


def begun(folder: Path, addresses: list[str], index: int = 0, has_log: bool = True) -> subprocess.Popen[bytes]:
    """Begin a server whose token and certificate are in a folder."""
    command = [sys.executable, "-m", "trainmaster.ps", "--index", str(index), "--servers", str(len(addresses))]
    command += ["--listen", addresses[index], "--leader", addresses[0], "--token-file", str(folder / "token")]
    command += ["--certificate", str(folder / "certificate.pem"), "--key", str(folder / "key.pem")]
    command += ["--directory", str(folder / "ckpt")] if has_log else []
    environ = {**os.environ, "PYTHONPATH": str(figures.ROOT / "src")}
    return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def server_folder(certificate: str, key: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as name:
        folder = Path(name)
        (folder / "token").write_text("token")
        (folder / "certificate.pem").write_text(certificate)
        (folder / "key.pem").write_text(key)
        yield folder


@contextlib.contextmanager
def server(way: str, has_log: bool, certificate: str, key: str) -> Iterator[tuple[int, Client, Path]]:
    """Run a server, and return its process, a client and its folder."""
    with server_folder(certificate, key) as folder:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        address = f"unix:{folder}/socket" if way == "shared memory" else f"127.0.0.1:{port}"
        process = begun(folder, [address], has_log=has_log)
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


def some_gradients(rows: int) -> Any:
    return numpy.random.default_rng(6).normal(0, 0.01, (rows, DIMENSION)).astype(numpy.float32)


def define(client: Client) -> None:
    client.define({}, {"table": TableSpec(DIMENSION)}, {"name": "Adam"}, Updates(tolerance=None))


def fill(client: Client, rows: int) -> Any:
    """Make a table of so many rows with slots, and return its ids in random order."""
    define(client)
    ids = numpy.random.default_rng(5).permutation(rows) * 7919
    gradients = some_gradients(2**17)
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
        gradients = some_gradients(BATCH)
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


class Stall(NamedTuple):
    """Seconds that a checkpoint's request and the pushes until it is whole took beyond the usual; the longest of them; a usual push."""

    lost: float
    longest: float
    usual: float


def stalls(certificate: str, key: str) -> tuple[Stall, Stall, float]:
    """Return what a checkpoint of 1 GB costs pushes with pauses and without, and the seconds that writing it in place takes."""
    with server("shared memory", True, certificate, key) as (_, client, folder):
        ids = fill(client, LARGE)
        generator = numpy.random.default_rng(8)
        gradients = some_gradients(BATCH)

        def push(has_pause: bool) -> float:
            batch = generator.choice(ids, BATCH, replace=False)
            begin = time.perf_counter()
            while has_pause and time.perf_counter() < begin + OWN_WORK:
                generator.random(10_000)
            begin = time.perf_counter()
            client.push(client.version, rows={"table": (batch, gradients)})
            return time.perf_counter() - begin

        def stall(has_pause: bool) -> Stall:
            usual = [push(has_pause) for _ in range(40)]
            begin = time.perf_counter()
            version = client.checkpoint()
            requested = time.perf_counter() - begin
            beside = []
            while client.status()[0]["completed"] < version:
                beside.append(push(has_pause))
            usual += [push(has_pause) for _ in range(40)]
            lost = requested + sum(beside) - len(beside) * statistics.mean(usual)
            return Stall(max(1e-3, lost), max([requested, *beside]), statistics.mean(usual))

        stall(True)  # the first one is not measured: memory that the server never had comes slowly
        found = stall(True), stall(False)
        shares = list(folder.glob("ckpt/version-*/variables-0-of-1.ckpt"))
        return *found, alone(written_in_place, shares[0])


def alone(measured: Callable[[Path], float], path: Path) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, (path,))


def written_in_place(share: Path) -> float:
    """Return the seconds that it takes to write what is in a share, in the process that has it."""
    shard = Shard(0, 1)
    load_share(str(share), shard)
    with tempfile.TemporaryDirectory(prefix="tm-bench-", dir=share.parent) as folder:
        begin = time.perf_counter()
        Share(shard).write(folder)
        return time.perf_counter() - begin


def loaded(folder: Path) -> float:
    """Return the seconds that it takes to check and load the share of server 0 of the newest checkpoint."""
    begin = time.perf_counter()
    manifest = manifests(str(folder / "ckpt"))[0]
    manifest.check(0)
    load_share(manifest.path(0), Shard(0, manifest.servers))
    return time.perf_counter() - begin


def back_after_kill(servers: int, certificate: str, key: str) -> tuple[float, float]:
    """Return seconds from the kill of server 0 to the next push of two clients, and seconds that loading its share takes."""
    with server_folder(certificate, key) as folder:
        addresses = [f"unix:{folder}/{index}" for index in range(servers)]
        processes = [begun(folder, addresses, index) for index in range(servers)]
        clients = [Client(addresses, Identity("token", certificate, f"worker:{number}")) for number in range(2)]
        ids = fill(clients[0], ROWS)
        version = clients[0].checkpoint()
        while min(status["completed"] for status in clients[0].status()) < version:
            time.sleep(0.01)
        pushed: list[list[float]] = [[], []]
        may_end = threading.Event()

        def work(number: int) -> None:
            generator, client, gradients = numpy.random.default_rng(number), clients[number], some_gradients(BATCH)
            define(client)
            while not may_end.is_set():
                client.push(client.version, rows={"table": (generator.choice(ids, BATCH, replace=False), gradients)})
                pushed[number].append(time.perf_counter())

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        try:
            for thread in threads:
                thread.start()
            wait_for(lambda: min(map(len, pushed)) >= 20)
            processes[0].kill()
            killed, counts = time.perf_counter(), list(map(len, pushed))
            processes[0].wait()
            processes[0] = begun(folder, addresses)
            wait_for(lambda: all(len(times) >= count + 2 for times, count in zip(pushed, counts, strict=True)))
            # a client may read one answer of the killed server behind its kill, never two
            back = max(times[count + 1] for times, count in zip(pushed, counts, strict=True)) - killed
        finally:
            may_end.set()
            for thread in threads:
                thread.join()
            for client in clients:
                client.close()
            for process in processes:
                process.kill()
                process.wait()
        return back, alone(loaded, folder)


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def stall_rows(found: list[tuple[Stall, Stall, float]]) -> list[figures.Row]:
    in_place = [whole for *_, whole in found]
    rows = []
    for place, name in enumerate(("", ", pushes without a pause")):
        measured = [(paced, unpaced)[place] for paced, unpaced, _ in found]
        lost = [stall.lost for stall in measured]
        longest, usual = (
            statistics.median(times) * 1e3 for times in zip(*(stall[1:] for stall in measured), strict=True)
        )
        note = f"{statistics.median(map(operator.truediv, lost, in_place)):.1%}; the longest push {longest:.0f} ms, usually {usual:.0f} ms"
        figure = f"stall by a checkpoint of 1 GB{name}"
        rows.append(figures.Row(figure, lost, "s", None, "in place", in_place, None if place else 1 / 0.08, note))
    return rows


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
    rows += stall_rows([stalls(certificate, key) for _ in range(max(1, runs // 2))])
    for servers in (1, 2):
        times = [back_after_kill(servers, certificate, key) for _ in range(runs)]
        load = statistics.median(load for _, load in times)
        beyond = [back - load for back, load in times]
        name = f"kill of server 0 of {servers} to the next push of both workers, beyond loading its share"
        rows.append(figures.Row(name, beyond, "s", 1.0, note=f"loading it takes {load:.2f} s"))
    return rows


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
