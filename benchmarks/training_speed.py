"""Training itself: steps a second of three programs under `tm run`, under torchrun and started by hand, with 1, 2 and 4 tasks.

    python benchmarks/training_speed.py [--runs 3]

The programs are PyTorch's DistributedDataParallel over gloo, a Keras model, and NumPy alone. Tasks of the first train one model together,
those of the others a model each; their rates are added up. torchrun starts any Python program; by hand, each program is a child process
with the variables of its rank and nothing said about threads. The peer of a row is the faster of the two in each run.

A machine's own speed may go up and down by a third within seconds. So all launchers start their programs at once, and when all have warmed
up, they train in turn, for some tenths of a second each, while the others sleep. Our own processes run in everyone's turns, so the time
that they take away from programs is counted by itself: their CPU time in all of these turns, as a share of the time of all cores.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Set
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

PROGRAMS = {"ddp": "PyTorch DDP", "keras": "Keras", "plain": "NumPy"}
TASKS = (1, 2, 4)
MARK = "BENCHMARK_LAUNCHER"  # a variable that names the launcher of a process
TURN = 0.5  # s that the programs of one launcher train
PAUSE = 0.1  # s of each turn in which nobody begins a step: threads of a library go on for a while
ROUNDS = 8
WARM_STEPS = 20
LIMIT = 180.0  # s of one run
MOST_TAKEN = 2.0  # %: a program that gets the rest trains at 0.98 of its speed
RATE = re.compile(rb"rate=([0-9.]+)")


# -- the programs --


def train(program: str, folder: str, tasks: int, place: int) -> None:
    """Be one of `tasks` programs of the launcher that trains as number `place`: print the rate at which it trains in its turns."""
    step = {"ddp": ddp, "keras": keras, "plain": plain}[program]()
    for _ in range(WARM_STEPS):
        step()
    (Path(folder) / f"warm-{place}-{os.getpid()}").touch()
    began = all_warm(Path(folder), tasks)
    count = count_together if program == "ddp" else count_alone
    counted, seconds = 0, 0.0
    for number in range(ROUNDS):
        begins = began + (number * len(LAUNCHERS) + place) * TURN
        time.sleep(max(0.0, begins - time.time()))
        first = time.perf_counter()
        counted += count(step, begins + TURN - PAUSE)
        seconds += time.perf_counter() - first
    print(f"rate={counted / seconds:.3f}", flush=True)
    if program == "ddp":
        leave_group()


def all_warm(folder: Path, tasks: int) -> float:
    """Wait for the programs of all launchers; the time at which the first turn begins, by their files and so the same for all."""
    while len(files := list(folder.glob("warm-*"))) < tasks * len(LAUNCHERS):
        time.sleep(0.05)
    return max(file.stat().st_mtime for file in files) + 2 * PAUSE


def count_alone(step: Callable[[], object], until: float) -> int:
    counted = 0
    while time.time() < until:
        step()
        counted += 1
    return counted


def count_together(step: Callable[[], object], until: float) -> int:
    """The same where rank 0 says when it is enough: a step that a peer does not take would hang."""
    import torch
    import torch.distributed as dist

    counted, enough = 0, torch.zeros(1)
    while not enough:
        for _ in range(3):
            step()
        counted += 3
        enough[0] = float(time.time() >= until)
        dist.broadcast(enough, 0)
    return counted


def leave_group() -> None:
    """Leave together: a rank that leaves while another still sends would end it by SIGABRT."""
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()


def ddp() -> Callable[[], None]:
    import torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pixels, labels = torch.rand(256, 64), torch.randint(10, (256,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()

    return step


def keras() -> Callable[[], None]:
    os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")
    import keras
    import numpy

    model = keras.Sequential([keras.layers.Dense(512, activation="relu"), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    generator = numpy.random.default_rng(0)
    pixels, labels = generator.random((256, 64), "float32"), generator.integers(0, 10, 256)
    return lambda: model.train_on_batch(pixels, labels)


def plain() -> Callable[[], None]:
    import numpy

    generator = numpy.random.default_rng(0)
    pixels, weights = generator.random((512, 512), "float32"), generator.random((512, 512), "float32")

    def step() -> None:
        nonlocal weights
        error = numpy.tanh(pixels @ weights) - pixels
        weights = weights - 1e-4 * (pixels.T @ error)

    return step


# -- the launchers --


def by_us(program: str, tasks: int, command: list[str], environ: Mapping[str, str], folder: str) -> bytes:
    import figures

    cores = len(os.sched_getaffinity(0))
    size = (
        [] if tasks <= cores else ["--cores", str(cores / tasks)]
    )  # one core each, as tasks ask by default, is more than there is
    framework = ["--framework", "pytorch"] if program == "ddp" else []
    return printed([figures.TM, "run", "-n", str(tasks), *size, *framework, "--", *command], environ, folder)


def by_torchrun(program: str, tasks: int, command: list[str], environ: Mapping[str, str], folder: str) -> bytes:
    import figures

    launcher = [str(figures.BIN / "torchrun"), "--nproc_per_node", str(tasks), "--master_port", str(free_port())]
    return printed([*launcher, *command[1:]], environ, folder)


def by_hand(program: str, tasks: int, command: list[str], environ: Mapping[str, str], folder: str) -> bytes:
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(tasks)}
    programs = [
        subprocess.Popen(
            command, env={**environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=folder,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        for rank in range(tasks)
    ]  # fmt: skip
    try:
        return b"".join(process.communicate(timeout=LIMIT)[0] for process in programs)
    finally:
        for process in programs:
            process.kill()
            process.wait()


LAUNCHERS = {"ours": by_us, "torchrun": by_torchrun, "by hand": by_hand}


def printed(command: list[str], environ: Mapping[str, str], folder: str) -> bytes:
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, timeout=LIMIT)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:].decode(errors='replace')}")
    return done.stdout


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def rates(program: str, tasks: int, environ: Mapping[str, str]) -> tuple[dict[str, float], float]:
    """Steps a second of all tasks together by launcher, and the share of all cores in percent that our own processes took meanwhile."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(LAUNCHERS)) as pool:
        command = [sys.executable, str(Path(__file__).absolute()), program, folder, str(tasks)]
        running = {
            name: pool.submit(launch, program, tasks, [*command, str(place)], {**environ, MARK: name}, folder)
            for place, (name, launch) in enumerate(LAUNCHERS.items())
        }
        while len(list(Path(folder).glob("warm-*"))) < tasks * len(LAUNCHERS):
            wait(running.values(), timeout=0.1, return_when=FIRST_COMPLETED)
            for ended in (future for future in running.values() if future.done()):
                raise RuntimeError(f"a launcher ended before all programs were warm: {ended.result()!r}")
        began = all_warm(Path(folder), tasks)
        programs = {int(file.name.rpartition("-")[2]) for file in Path(folder).glob("warm-*")}
        time.sleep(max(0.0, began - time.time()))
        before, first = our_seconds(programs), time.monotonic()
        time.sleep((ROUNDS - 1) * len(LAUNCHERS) * TURN)  # the first launcher has its last turn then, and ends
        after, last = our_seconds(programs), time.monotonic()
        taken = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
        found = {name: [float(rate) for rate in RATE.findall(future.result())] for name, future in running.items()}
    for name, said in found.items():
        if len(said) != tasks:
            raise RuntimeError(f"{len(said)} of {tasks} programs of {program} {name} said their rate")
    together = {name: sum(said) / (tasks if program == "ddp" else 1) for name, said in found.items()}
    return together, 100 * taken / ((last - first) * len(os.sched_getaffinity(0)))


def our_seconds(programs: Set[int]) -> dict[int, float]:
    """CPU seconds of each process that `tm run` started, without programs: the command, the master, the agents and what they start."""
    import psutil

    seconds = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid not in programs and process.environ().get(MARK) == "ours":
                times = process.cpu_times()
                seconds[process.pid] = times.user + times.system
    if not seconds:
        raise RuntimeError("none of our processes was found while programs trained")
    return seconds


def measure(runs: int) -> list[object]:
    import figures

    rows: list[object] = []
    with figures.place() as environ:
        for program, title in PROGRAMS.items():
            shares: list[float] = []
            for tasks in TASKS:
                of: dict[str, list[float]] = {launcher: [] for launcher in LAUNCHERS}
                for _ in range(runs):
                    measured, share = rates(program, tasks, environ)
                    shares.append(share)
                    for launcher, rate in measured.items():
                        of[launcher].append(rate)
                best = [max(pair) for pair in zip(of["torchrun"], of["by hand"], strict=True)]
                note = ", ".join(f"{name} {statistics.median(of[name]):.0f}" for name in ("torchrun", "by hand"))
                rows.append(
                    figures.Row(
                        f"{title}, {tasks} {'task' if tasks == 1 else 'tasks'}", of["ours"], "steps/s",
                        peer_name="the faster", peer=best, least=0.98, note=note, more_is_better=True,
                    )
                )  # fmt: skip
            rows.append(figures.Row(f"{title}, cores' time that our processes take", shares, "%", limit=MOST_TAKEN))
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in PROGRAMS:
        train(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        import figures

        figures.main(measure, 3, __doc__)  # type: ignore[arg-type]
