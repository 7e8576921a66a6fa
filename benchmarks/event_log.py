"""The event log: appends a second, a replay of a million events, a restart from snapshot and tail.

Lines of about 150 bytes, encoded from events; each 10 ms what has gathered is appended and synced (fdatasync). The peer,
in the same run, on the same disk and with the same lines, is SQLite in WAL mode with synchronous=FULL, a transaction each
10 ms. Replay decodes each line to an event; SQLite's reads its rows and decodes them to the same events. Run:

    python benchmarks/event_log.py [--events N] [--runs N] [--directory DIR] [--json]

The figures to reach (the design's table): >= 100k appends/s; 1M events replayed <= 5 s; restart from snapshot and tail <= 1 s.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trainmaster.core.machine.events import Event, decode, encode
from trainmaster.log.reader import Reader, replay
from trainmaster.log.replay import restart
from trainmaster.log.snapshots import write_snapshot
from trainmaster.log.storage import storage_for
from trainmaster.log.writer import open_writer

PERIOD = 0.010  # seconds of events in one sync
TAIL = 50_000  # events behind the newest snapshot


def events(count: int) -> Iterator[Event]:
    for n in range(1, count + 1):
        data = {
            "task": f"worker:{n % 64}",
            "attempt": 1,
            "kind": "progress",
            "value": 0.42,
            "step": n,
            "phase": "train",
        }
        yield Event(n, 1767225600.0 + n / 1000, 1, "progressed", data)


def batches(count: int) -> Iterator[list[bytes]]:
    """The lines that are encoded in each period."""
    batch: list[bytes] = []
    due = time.perf_counter() + PERIOD
    for event in events(count):
        batch.append(encode(event))
        if time.perf_counter() >= due:
            yield batch
            batch, due = [], time.perf_counter() + PERIOD
    yield batch


def append_ours(folder: Path, count: int) -> None:
    writer = open_writer(storage_for(folder), 1, 0)
    for batch in batches(count):
        writer.append(batch, sync=True)
    writer.close()


def append_sqlite(folder: Path, count: int) -> None:
    folder.mkdir()
    base = sqlite3.connect(folder / "log.sqlite", isolation_level=None)
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=full")
    base.execute("create table events (n integer primary key, line blob)")
    n = 0
    for batch in batches(count):
        base.execute("begin")
        base.executemany("insert into events values (?, ?)", enumerate(batch, n + 1))
        base.execute("commit")
        n += len(batch)
    base.close()


def replay_ours(folder: Path) -> int:
    return sum(1 for _ in replay(Reader(storage_for(folder)), decode))


def replay_sqlite(folder: Path) -> int:
    base = sqlite3.connect(folder / "log.sqlite")
    count = sum(1 for _ in (decode(line) for (line,) in base.execute("select line from events order by n")))
    base.close()
    return count


def restart_ours(folder: Path) -> int:
    """Load a state of 2 MB and read the tail after it."""
    state, reader = restart(storage_for(folder), "1")
    assert state is not None
    assert json.loads(state)
    return sum(1 for _ in replay(reader, decode))


def timed(act: Callable[[], int | None], expected: int | None = None) -> float:
    began = time.perf_counter()
    count = act()
    seconds = time.perf_counter() - began
    assert count == expected, f"{count} events, not {expected}"
    return seconds


def measure(count: int, runs: int, folder: Path) -> dict[str, list[float]]:
    """Runs of ours and the peer in turn, so that both meet the machine as it is."""
    figures: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)

    some = max(count // 5, 1)
    for run in range(runs):
        ours, peer = folder / f"ours-{run}", folder / f"peer-{run}"
        add("append, events/s", some / timed(lambda at=ours: append_ours(at, some)))
        add("append, SQLite, events/s", some / timed(lambda at=peer: append_sqlite(at, some)))
    ours, peer = folder / "ours", folder / "peer"
    append_ours(ours, count)
    append_sqlite(peer, count)
    tail = min(TAIL, count // 2)
    state = json.dumps(dict.fromkeys(range(10_000), "x" * 200)).encode()
    write_snapshot(storage_for(ours), count - tail, 1, "1", state)
    for _ in range(max(runs - 2, 1)):
        add("replay, s", timed(lambda: replay_ours(ours), count))
        add("replay, SQLite, s", timed(lambda: replay_sqlite(peer), count))
        add(f"restart with a tail of {tail}, s", timed(lambda: restart_ours(ours), tail))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="The event log against SQLite.")
    parser.add_argument(
        "--events", type=int, default=1_000_000, help="events replayed; a fifth of them in each append run"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each append; two fewer of each replay")
    parser.add_argument("--directory", default=None, help="where to write (the disk that is measured)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="event-log-", dir=arguments.directory))
    try:
        figures = measure(arguments.events, arguments.runs, folder)
    finally:
        shutil.rmtree(folder)
    median = {name: statistics.median(values) for name, values in figures.items()}
    ratios = {
        "append, ours / SQLite": median["append, events/s"] / median["append, SQLite, events/s"],
        "replay, SQLite / ours": median["replay, SQLite, s"] / median["replay, s"],
    }
    if arguments.json:
        print(json.dumps({"events": arguments.events, "figures": figures, "ratios": ratios}))
        return
    line = next(batches(1))[0]
    print(f"{arguments.events} events, a line of {len(line)} bytes, on {folder.parent}")
    print(f"{'':34}{'min':>12}{'median':>12}{'max':>12}")
    for name, values in figures.items():
        digits = 0 if "events/s" in name else 2
        print(f"{name:34}" + "".join(f"{x:>12,.{digits}f}" for x in (min(values), median[name], max(values))))
    for name, ratio in ratios.items():
        print(f"{name:34}{'':12}{ratio:>11.1f}x")


if __name__ == "__main__":
    main()
