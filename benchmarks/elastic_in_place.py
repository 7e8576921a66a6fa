"""Death of one of N ranks to the survivors' next step, and to full size again: a PyTorch program that uses `trainmaster.runtime.elastic`.

    python benchmarks/elastic_in_place.py [--runs 10]

Three and four ranks train a model of 10 MB over gloo (where there is a GPU: over NCCL), without any checkpoint. A step takes 50 ms, and
more where two cores need it. One after another is killed by SIGKILL; its successor is forked from a warm template. The first time counts
until each survivor has completed a new step, the second until all ranks have completed a step together. The third counts until the round's
group was aborted in each survivor, because the dead rank's agent reported its death. All processes read one clock. The notes tell how many
groups came back, the most steps that one survivor did again after one kill, and whether the parameters of all ranks were equal after each
step.

The peer is torchft (`make peers`) with the same PyTorch, model and steps: a lighthouse, and a replica group of one process for each rank,
which is started anew at once when it dies. Its times are as short as they were seen to work: heartbeats each 20 ms that count for 250 ms, a
look at the quorum each 5 ms, 250 ms for those who are late.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import figures

FIRST, BETWEEN = 30.0, 6.0  # s of training before the first kill, and before each other: a template is made meanwhile
LIMIT = 120.0  # s in which all ranks must be back
TORCHFT = figures.PEERS.parent / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
PROGRAM = r"""
import itertools, os, time
import torch
from trainmaster.runtime import task
from trainmaster.runtime.elastic import torch_groups
from trainmaster.runtime.elastic.torch_training import Training

abort = torch_groups.Group.abort

def noted_abort(group):
    abort(group)
    with open(f"aborts{task().index}.log", "a") as log:
        log.write(f"{time.monotonic()}\n")

torch_groups.Group.abort = noted_abort

def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.environ["NCCL_HOSTID"] = str(task().index)  # as on several machines: on one, NCCL lets no two ranks use a GPU
    model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024)).to(device)
    training = Training(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.001))
    with open(f"rank{task().index}.log", "a") as log:
        ended = time.monotonic()
        for x in training.batches(torch.ones(4, 256, device=device) for _ in itertools.count()):
            if os.path.exists("stop"):
                os._exit(0)
            before = training.steps
            with training.step():
                model(x).square().mean().backward()
                time.sleep(max(0.0, ended + 0.05 - time.monotonic()))
            ended = time.monotonic()
            total = sum(parameter.double().sum().item() for parameter in model.parameters())
            size = training.size if training.steps > before else 0  # 0: the step was interrupted, and is done again
            log.write(f"{os.getpid()} {training.steps} {size} {total!r} {time.monotonic()}\n")
            log.flush()

main()
"""

PEER = r"""
import os, sys, time
from datetime import timedelta
import torch
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo

def main():
    rank, lighthouse = sys.argv[1:]
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def state_dict():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), load_state_dict=load_state_dict, state_dict=state_dict,
        min_replica_size=2, replica_id=f"rank{rank}", rank=0, world_size=1, store_addr="localhost", store_port=store.port,
        lighthouse_addr=lighthouse, hostname="localhost", heartbeat_interval=timedelta(milliseconds=20),
        timeout=timedelta(seconds=5), quorum_timeout=timedelta(seconds=60), connect_timeout=timedelta(seconds=5),
    )
    x, ended = torch.ones(4, 256), time.monotonic()
    with open(f"rank{rank}.log", "a") as log:
        while not os.path.exists("stop"):
            manager.start_quorum()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            time.sleep(max(0.0, ended + 0.05 - time.monotonic()))
            parameters = list(model.parameters())
            flat = torch.cat([parameter.grad.reshape(-1) for parameter in parameters])
            manager.allreduce(flat).wait()
            means = torch.split(flat, [parameter.numel() for parameter in parameters])
            for parameter, mean in zip(parameters, means):
                parameter.grad = mean.view_as(parameter)
            size = 0
            if manager.should_commit():
                optimizer.step()
                size = manager.num_participants()
            ended = time.monotonic()
            total = sum(parameter.double().sum().item() for parameter in parameters)
            log.write(f"{os.getpid()} {manager.current_step()} {size} {total!r} {time.monotonic()}\n")
            log.flush()
    os._exit(0)

main()
"""


@dataclass
class Outcome:
    """Seconds from each kill: to the survivors' next step, to full size, to the abort in each survivor; and the most steps done again."""

    next_steps: list[float] = field(default_factory=list)
    full: list[float] = field(default_factory=list)
    aborts: list[float] = field(default_factory=list)
    again: int = 0
    same: str = ""

    def note(self, runs: int) -> str:
        return f"came back: {len(self.full)} of {runs}; at most {self.again} steps done again; parameters of all ranks {self.same}"


class Ranks:
    """The logs of all ranks: rows of process, step, members, sum of the parameters, time."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def rows(self, rank: int) -> list[list[str]]:
        with contextlib.suppress(FileNotFoundError):
            rows = [
                line.split()
                for line in (self.folder / f"rank{rank}.log").read_text().splitlines(keepends=True)
                if line[-1] == "\n"
            ]
            return [row for row in rows if len(row) == 5]
        return []

    def since(self, rank: int, at: float, size: int = 0) -> list[list[str]]:
        """The completed steps of a rank since a time, in rounds of this size where it is given."""
        return [
            row for row in self.rows(rank) if float(row[4]) > at and row[2] != "0" and (not size or int(row[2]) == size)
        ]

    def abort(self, rank: int, at: float) -> float | None:
        """The first abort of a rank since a time."""
        file = self.folder / f"aborts{rank}.log"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return next((float(line) for line in lines if line[-1] == "\n" and float(line) > at), None)

    def next_step(self, rank: int, at: float, with_aborts: bool) -> float | None:
        """The time of the first step that a survivor has completed without the one that was killed at `at`, or with its successor."""
        if with_aborts:  # the successor may be there for the very next round
            aborted = self.abort(rank, at)
            steps = [] if aborted is None else self.since(rank, aborted)
        else:
            steps = self.since(rank, at, self.count - 1)
        return float(steps[0][4]) if steps else None

    def are_full(self, at: float) -> bool:
        return all(self.since(rank, at, self.count) for rank in range(self.count))


def until(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def kills(ranks: Ranks, runs: int, with_aborts: bool) -> Outcome:
    """Kill ranks in turn, until they do not come back."""
    outcome = Outcome()
    if not until(lambda: ranks.are_full(0.0)):
        return outcome
    time.sleep(FIRST - BETWEEN)
    for run in range(runs):
        time.sleep(BETWEEN)
        victim = run % ranks.count
        survivors = [rank for rank in range(ranks.count) if rank != victim]
        process = int(ranks.rows(victim)[-1][0])
        killed = time.monotonic()
        os.kill(process, signal.SIGKILL)

        def next_steps(at: float = killed, survivors: Sequence[int] = survivors) -> list[float | None]:
            return [ranks.next_step(rank, at, with_aborts) for rank in survivors]

        if not until(lambda steps=next_steps: None not in steps()):  # type: ignore[misc]
            break
        next_step = max(step for step in next_steps() if step is not None)
        if not until(lambda at=next_step: ranks.are_full(at)):  # type: ignore[misc]
            break
        outcome.next_steps.append(next_step - killed)
        outcome.full.append(
            max(float(ranks.since(rank, next_step, ranks.count)[0][4]) for rank in range(ranks.count)) - killed
        )
        if with_aborts:
            outcome.aborts += [at - killed for rank in survivors if (at := ranks.abort(rank, killed)) is not None]
        for rank in survivors:
            rows = [row for row in ranks.rows(rank) if killed < float(row[4]) <= next_step]
            outcome.again = max(outcome.again, sum(row[2] == "0" for row in rows))
    outcome.same = "equal" if equal(ranks) else "NOT EQUAL"
    return outcome


def equal(ranks: Ranks) -> bool:
    sums = defaultdict(set)
    for rank in range(ranks.count):
        for _, step, size, total, _ in ranks.rows(rank):
            if size != "0":
                sums[step].add(total)
    return all(len(totals) == 1 for totals in sums.values())


def ours(count: int, runs: int, environ: Mapping[str, str]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as place:
        folder = Path(place)
        (folder / "train.py").write_text(PROGRAM)
        role = {
            "command": [sys.executable, "train.py"], "replicas": {"min": 2, "max": count}, "threads": 1, "workdir": "share",
            "resources": {"cores": 0.25, "memory": "4GiB"}, "restart": {"scope": "task", "limit": runs + 1},
        }  # fmt: skip
        job = {"name": "elastic", "framework": "pytorch", "roles": {"worker": role}}
        (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
        process = subprocess.Popen(
            [figures.TM, "run", "job.yaml"], env={"CUDA_VISIBLE_DEVICES": "0", **environ},  # all ranks use one GPU
            cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            outcome = kills(Ranks(folder, count), runs, with_aborts=True)
            (folder / "stop").touch()
            process.wait(LIMIT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(LIMIT)
    if not outcome.full:
        raise RuntimeError(f"{count} ranks never came back")
    return outcome


def torchft(count: int, runs: int, environ: Mapping[str, str]) -> Outcome:
    """The same with torchft, whose processes a thread starts anew."""
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as place:
        folder = Path(place)
        (folder / "train.py").write_text(PEER)
        (folder / "lighthouse.py").write_text("from torchft._torchft import lighthouse_main\nlighthouse_main()\n")
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        times = ["--heartbeat_timeout_ms", "250", "--join_timeout_ms", "250", "--quorum_tick_ms", "5"]
        commands = [["lighthouse.py", "--min_replicas", "2", "--bind", f"[::]:{port}", *times]]
        commands += [["train.py", str(rank), f"http://localhost:{port}"] for rank in range(count)]
        search = {"PYTHONPATH": str(TORCHFT), "OMP_NUM_THREADS": "1"}
        is_over = threading.Event()

        def keep(command: Sequence[str]) -> None:
            while not is_over.is_set():
                process = subprocess.Popen(
                    [sys.executable, *command], env={**environ, **search}, cwd=folder, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                while process.poll() is None and not is_over.is_set():
                    time.sleep(0.002)
                process.kill()
                process.wait()

        threads = [threading.Thread(target=keep, args=[command]) for command in commands]
        for thread in threads:
            thread.start()
        try:
            return kills(Ranks(folder, count), runs, with_aborts=False)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()


def measured(count: int, runs: int, environ: Mapping[str, str]) -> list[figures.Row]:
    outcome = ours(count, runs, environ)
    peer = torchft(count, runs, environ) if (TORCHFT / "torchft").exists() else Outcome()
    pairs = min(len(outcome.full), len(peer.full))  # each kill of the one beside one of the other

    def row(figure: str, times: list[float], peers: list[float], limit: float, note: str = "") -> figures.Row:
        return figures.Row(figure, times[: pairs or None], "s", limit, "torchft", peers[:pairs], note=note)

    its = f"torchft {peer.note(runs)}" if peer.same else "torchft is not there (`make peers`)"
    return [
        row(f"kill of one of {count} ranks to the survivors' next step", outcome.next_steps, peer.next_steps, 0.20,
            f"{outcome.note(runs)}; {its}"),
        row(f"kill of one of {count} ranks to full size", outcome.full, peer.full, 0.50),
        figures.Row(f"kill of one of {count} ranks to the abort in each survivor", outcome.aborts, "s", 0.10),
    ]  # fmt: skip


def measure(runs: int) -> list[figures.Row]:
    with figures.place() as environ:
        return [row for count in (3, 4) for row in measured(count, runs, environ)]


if __name__ == "__main__":
    figures.main(measure, 10, __doc__)
