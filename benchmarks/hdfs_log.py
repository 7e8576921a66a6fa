"""The event log on HDFS: one open file whose batches are synced, beside an object put for each batch.

Both write the same lines to the same HDFS, in turn: batches of 20 events that end in a barrier, each acknowledged before the next begins.
The second is the form of the log on S3, and would be its form on HDFS if a file could not be left open. Run:

    python benchmarks/hdfs_log.py [--runs N] [--json]

It asks the HDFS of HADOOP_CONF_DIR, else starts a Hadoop on this machine (`eval "$(tm cluster env hadoop)"` leads to one that runs).
"""

from __future__ import annotations

import statistics
import time
import uuid

import figures
import hdfs_place

from trainmaster.core.machine.events import Event, encode
from trainmaster.log.hdfs import HdfsStorage
from trainmaster.log.reader import Reader, replay
from trainmaster.log.storage import storage_for
from trainmaster.log.writer import Writer, open_writer

SIZE = 20  # events in a batch
OURS, PEER = 300, 10  # batches


class Objects(HdfsStorage):
    """The same place, written to as an object store is."""

    appends = False


def lines(batch: int) -> list[bytes]:
    first = batch * SIZE + 1
    data = {"task": "worker:1", "attempt": 1, "kind": "progress", "value": 0.42, "phase": "train"}
    return [encode(Event(n, 1767225600.0 + n / 1000, 1, "progressed", data)) for n in range(first, first + SIZE)]


def latencies(writer: Writer, count: int) -> list[float]:
    """Seconds until each batch was durable."""
    found = []
    for batch in range(count):
        told = lines(batch)
        start = time.perf_counter()
        writer.append(told, sync=True)
        found.append(time.perf_counter() - start)
    writer.close()
    return found


def measured(url: str, runs: int) -> list[figures.Row]:
    ours: list[list[float]] = []
    peer: list[list[float]] = []
    reading = []
    for _ in range(runs):
        open_file, objects = f"{url}/{uuid.uuid4().hex[:8]}", Objects(f"{url}/{uuid.uuid4().hex[:8]}")
        ours.append(latencies(open_writer(storage_for(open_file), 1, 0), OURS))
        peer.append(latencies(open_writer(objects, 1, 0), PEER))
        start = time.perf_counter()
        assert sum(1 for _ in replay(Reader(storage_for(open_file)), bytes)) == OURS * SIZE
        reading.append(time.perf_counter() - start)
    note = f"{SIZE} events a batch; {OURS} batches, the peer's {PEER}"
    rates = [[SIZE / statistics.mean(run) for run in side] for side in (ours, peer)]
    return [
        figures.Row(
            "a batch is durable (median of a run)",
            [statistics.median(run) for run in ours],
            limit=0.05,
            peer_name="an object a batch",
            peer=[statistics.median(run) for run in peer],
            least=20,
            note=note,
        ),
        figures.Row(
            "a batch is durable (99th of 100)",
            [statistics.quantiles(run, n=100)[98] for run in ours],
            note=f"events a second, each batch awaited: {figures.spread(rates[0], '')}; the peer {figures.spread(rates[1], '')}",
        ),
        figures.Row(f"{OURS * SIZE:,} events are read by a fresh reader", reading),
    ]


def measure(runs: int) -> list[figures.Row]:
    with hdfs_place.place() as url:
        return measured(url, runs)


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
