"""200 containers on YARN: from the ask to every program's first instruction; then the master's memory, and its death.

    python benchmarks/yarn_tasks200.py [--runs 3]

Two NodeManagers of this machine with room for all. Their own time is measured in the same run: a master that does nothing else asks for 200
containers of the same size, and starts in each a shell that appends the time to a file, as our programs do; no agent, no file brought to
the container. Ours: a job of 200 tasks, from the event `asked` to the last line of that file.

While the 200 programs run, the proportional set size of the master is read; then it is killed with -9. YARN starts the second attempt; the
time from its process's start to the event that tells of the last agent's return is ours. The same is measured with 50 tasks: each of 200
agents needs some 50 ms of a core then, and on a machine of two cores they have these one after the other.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import figures
import yarn_place
from memory import pss

import trainmaster
from trainmaster.clusters.hadoop import Settings
from trainmaster.hadoop.conf import load
from trainmaster.host import linux

sys.path.append(str(figures.ROOT / "tests"))
from unmanaged import unmanaged

TASKS, FEWER = 200, 50
SIZE = 128  # MiB of a container, in which ours have 64 for the program
PROGRAM = "date +%s.%N >> {times}"


async def bare(times: Path) -> float:
    """Seconds from the ask for the containers to the first instruction of the last, by nothing but YARN's protocols."""
    async with unmanaged(load()) as master:
        began = time.time()
        for number in range(1, TASKS + 1):
            master.ask(number=number, memory=SIZE)
        started: list[asyncio.Task[object]] = []

        def all_started() -> bool:
            for number in sorted(master.granted)[len(started) :]:
                started.append(asyncio.create_task(master.start(number, PROGRAM.format(times=times))))
            return len(started) == TASKS

        await master.until(all_started, yarn_place.LIMIT)
        await asyncio.gather(*started)
        last = max(await asyncio.to_thread(yarn_place.stamps, times, TASKS))
    return last - began


def job(times: Path, tasks: int) -> trainmaster.Run:
    role = {
        "command": f"{PROGRAM.format(times=times)}; exec sleep 3600",
        "replicas": tasks,
        "resources": {"cores": 0.01, "memory": "64MiB"},
        "stop": {"grace": "1s"},
    }
    return trainmaster.submit({"name": "many", "files": [], "roles": {"worker": role}}, engine="yarn")


def when(run: trainmaster.Run, kind: str, after: float = 0.0) -> list[float]:
    """Seconds since 1970 of the events of a kind."""
    return [event["at"] for event in run.events() if event["type"] == kind and event["at"] > after]


def containers(run: trainmaster.Run) -> list[str]:
    return [event["container"] for event in run.events() if event["type"] == "granted"]


def master_of(application: str, besides: int = 0) -> int:
    found = yarn_place.pids({"master": f"{application} trainmaster.master.container:main"}).get("master", 0)
    return found if found != besides else 0


def started_at(pid: int) -> float:
    """Seconds since 1970."""
    process = linux.look(pid)
    assert process is not None
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot + process.start / os.sysconf("SC_CLK_TCK")


def ours(times: Path, tasks: int) -> tuple[float, float, float, float]:
    """To the last first instruction, s; the master, MiB; to the second attempt's start, s; from there to the last agent's return, s."""
    run = job(times, tasks)
    try:
        last = max(yarn_place.stamps(times, tasks))
        began = when(run, "asked")[0]
        yarn_place.until(lambda: len(when(run, "started")) == tasks)
        time.sleep(5.0)  # pings have gone both ways
        application = "_".join(["application", *containers(run)[0].split("_")[-4:-2]])
        first = master_of(application)
        memory = pss(first)
        killed = time.time()
        os.kill(first, signal.SIGKILL)
        second = yarn_place.until(lambda: master_of(application, first))
        started = started_at(second)
        back = yarn_place.until(lambda: found if len(found := when(run, "agent-connected", killed)) >= tasks else [])
        return last - began, memory, started - killed, max(back) - started
    finally:
        run.kill()
        run.wait(yarn_place.LIMIT, check=False)


def measure(runs: int) -> list[figures.Row]:
    alone: list[float] = []
    found: list[tuple[float, float, float, float]] = []
    fewer: list[float] = []
    with yarn_place.place(Settings(nodes=2, memory=65536, cores=1000)) as (_, folder):
        for run in range(-1, runs):
            times = folder / f"times-{run}"
            seconds = asyncio.run(bare(times))
            times.unlink()
            mine = ours(times, TASKS)
            times.unlink()
            *_, back_of_fewer = ours(times, FEWER)
            if run >= 0:
                alone.append(seconds)
                found.append(mine)
                fewer.append(back_of_fewer)
    taken, memory, attempt, back = (list(column) for column in zip(*found, strict=True))
    return [
        figures.Row(f"{TASKS} first instructions, from the ask", taken, "s", 20, "the NodeManagers' own", alone),
        figures.Row(f"the master of {TASKS} containers", memory, "MiB", 80),
        figures.Row("from a killed master to the start of YARN's second attempt", attempt, "s", note="YARN's own"),
        figures.Row(f"from there to the last of {FEWER} agents back", fewer, "s", 2),
        figures.Row(f"from there to the last of {TASKS} agents back", back, "s", note="all on two cores"),
    ]  # fmt: skip


if __name__ == "__main__":
    figures.main(measure, 3, __doc__)
