"""Shards leased and reported a second by two programs, and the memory of a million shards.

    python benchmarks/shards.py [--runs 5]

Ours: two processes that use `trainmaster.runtime` as programs do, over the agent's real Unix socket; agent's end and
accounting share one more process, so the WebSocket between agent and master is not in it. A pair is one shard leased
and reported as done. The peer in the same run: two processes that take items off a `multiprocessing` manager's queue
and acknowledge each, two round trips a pair. A plain Python work queue offers that (it keeps no account of who holds
what). ElasticDL cannot be run here as it is; the figure published for it is printed beside as a reference, not
measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from multiprocessing.managers import BaseManager
from pathlib import Path
from queue import Queue
from typing import Any

SOURCE = str(Path(__file__).parent.parent / "src")
sys.path.insert(0, SOURCE)

ELASTICDL = 1_000  # pairs/s, two clients: published, see the docstring
CLIENTS = 2
MILLION = 1_000_000

PROGRAM = """
import sys
from trainmaster import runtime
batch = None if sys.argv[1] == "None" else int(sys.argv[1])
shards = runtime.shards("train", batch=batch).shards()
next(shards)
print("ready", flush=True)
sys.stdin.readline()
read = 1 + sum(1 for _ in shards)
print(read, flush=True)
"""

PEER = """
import sys
from multiprocessing.managers import BaseManager
class Remote(BaseManager): pass
Remote.register("items")
remote = Remote(address=sys.argv[1], authkey=b"shards"); remote.connect()
items = remote.items()
print("ready", flush=True)
sys.stdin.readline()
read = 0
while items.get() is not None:
    items.task_done()
    read += 1
print(read, flush=True)
"""


class Remote(BaseManager):
    pass


def main() -> None:
    wanted = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    wanted.add_argument("--runs", type=int, default=5)
    runs = wanted.parse_args().runs
    told = {}
    for name, measure in {
        "one by one": lambda: asyncio.run(ours(20_000, "1")),
        "as the runtime batches": lambda: asyncio.run(ours(120_000, "None")),
        "peer: manager queue": lambda: peer(6_000),
    }.items():
        measured = [measure() for _ in range(runs)]
        told[name] = statistics.median(measured)
        print(
            f"{name:24} {min(measured):10,.0f} {told[name]:10,.0f} {max(measured):10,.0f}  pairs/s (min, median, max of {runs})"
        )
    plain = told["peer: manager queue"]
    print(f"{'ElasticDL':24} {ELASTICDL:21,}  pairs/s as published, not measured here")
    print(
        f"one by one:  {told['one by one'] / plain:.1f} x the manager's queue, {told['one by one'] / ELASTICDL:.0f} x ElasticDL's figure"
    )
    batched = told["as the runtime batches"]
    print(f"as batched:  {batched / plain:.1f} x the manager's queue, {batched / ELASTICDL:.0f} x ElasticDL's figure")
    for shuffle in (False, True):
        print(f"{MILLION:,} shards{', shuffled' if shuffle else '':10} {memory(shuffle) / 2**20:8.1f} MiB at most")
    reached = told["one by one"] >= 8_000 and batched >= 60_000 and memory(True) < 50 * 2**20
    print("figures to reach (8k/s one by one, 60k/s as batched, 50 MiB):", "reached" if reached else "NOT reached")
    sys.exit(not reached)


async def ours(pairs: int, batch: str) -> float:
    """Pairs/s of two programs, from their common start to the last shard's being done."""
    from trainmaster.agent.link.programs import Programs
    from trainmaster.core.input.leases import Leases
    from trainmaster.core.input.shards import Options, ShardTable

    table = ShardTable.make([("part", pairs)], Options(size=1), name="train")
    leases = Leases({"train": table})
    agents = []
    with tempfile.TemporaryDirectory() as place:
        for index in range(CLIENTS):
            task = f"worker:{index}"

            async def lease(name: str, want: int, done: Any, back: Any, task: str = task) -> Any:
                if done:
                    count(table, leases, task, done)
                leases.give_back(name, task, back)
                return table.answer(leases.lease(name, task, want))

            agents.append(Programs(f"{place}/{index}.sock", lease))
            await agents[-1].start()
            agents[-1].begin(1)
        environments = [{"TRAINMASTER_SOCKET": agent.path, "TRAINMASTER_ATTEMPT": "1"} for agent in agents]
        try:
            return await asyncio.to_thread(clients, [PROGRAM] * CLIENTS, [batch], environments, pairs)
        finally:
            for agent in agents:
                await agent.close()
            assert table.finished


def count(table: Any, leases: Any, task: str, report: dict[str, Any]) -> None:
    """Take a report in, as a master's turn does."""
    from trainmaster.core.machine.events import Event

    part = leases.held_part(task, {"input": table.name, **report})
    if payload := table.done(task, 1, part["ranges"], part["records"]):
        table.apply("shards-done", payload)
        leases.follow([Event(1, 0.0, 1, "shards-done", payload)])


def peer(pairs: int) -> float:
    items: Queue[int | None] = Queue()
    for item in [*range(pairs), *[None] * CLIENTS]:
        items.put(item)
    Remote.register("items", callable=lambda: items)
    with tempfile.TemporaryDirectory() as place:
        remote = Remote(address=f"{place}/queue", authkey=b"shards")
        remote.start()
        try:
            return clients([PEER] * CLIENTS, [f"{place}/queue"], [{}] * CLIENTS, pairs)
        finally:
            remote.shutdown()


def clients(programs: list[str], arguments: list[str], environments: list[dict[str, str]], pairs: int) -> float:
    started = []
    try:
        for program, environment in zip(programs, environments, strict=True):
            environment = {**os.environ, "PYTHONPATH": SOURCE, **environment}
            command = [sys.executable, "-c", program, *arguments]
            started.append(
                subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
        for process in started:
            assert said(process) == "ready"
        begin = time.perf_counter()
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        read = sum(int(said(process)) for process in started)
        took = time.perf_counter() - begin
        assert read == pairs, f"{read} of {pairs} were read"
        return pairs / took
    finally:
        for process in started:
            process.kill()
            process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def memory(shuffle: bool) -> int:
    """Peak bytes of a table of a million shards, 40,000 of them leased and every other one of those reported."""
    from trainmaster.core.input.leases import Leases
    from trainmaster.core.input.shards import Options, ShardTable

    tracemalloc.start()
    try:
        files = [(f"hdfs:///data/part-{i:05}", 1000 * 2**20) for i in range(1000)]
        table = ShardTable.make(files, Options(size=2**20, shuffle=shuffle), name="train")
        leases = Leases({"train": table})
        assert table.total == MILLION
        for step in range(40):
            task = f"worker:{step % 100}"
            leased = leases.lease("train", task, 1000)
            for first in range(0, len(leased), 2):  # every other one is done
                number = leased[first].number
                count(table, leases, task, {"ranges": [[number, number + 1]], "records": [7]})
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    main()
