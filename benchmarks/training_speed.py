"""Training itself: steps a second of three programs under `tm run`, under torchrun and started by hand, with 1, 2 and 4 tasks.

    python benchmarks/training_speed.py [--runs 3]

The programs are PyTorch's DistributedDataParallel over gloo, a Keras model, and NumPy alone. Tasks of the first train one model together,
those of the others a model each; their rates are added up. A program warms up, waits until all others have, and then counts its steps for
some seconds, so that neither imports nor starts are measured. torchrun starts any Python program; by hand, each program is a child process
with the variables of its rank and nothing said about threads. The peer of a row is the faster of the two in each run.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PROGRAMS = {"ddp": "PyTorch DDP", "keras": "Keras", "plain": "NumPy"}
TASKS = (1, 2, 4)
SECONDS = 2.0  # that steps are counted
WARM_STEPS = 20
LIMIT = 120.0  # s of one run
RATE = re.compile(rb"rate=([0-9.]+)")


# -- the programs --


def train(program: str, folder: str, tasks: int) -> None:
    """Be one of `tasks` programs: print the rate at which it trains while all others do."""
    step = {"ddp": ddp, "keras": keras, "plain": plain}[program]()
    for _ in range(WARM_STEPS):
        step()
    (Path(folder) / f"warm-{os.getpid()}").touch()
    while len(list(Path(folder).glob("warm-*"))) < tasks:
        time.sleep(0.005)
    if program == "ddp":  # steps are taken together, so all count the same number of them
        counted, seconds = count_together(step)
    else:
        counted, seconds = count_alone(step)
    print(f"rate={counted / seconds:.3f}", flush=True)


def count_alone(step: Callable[[], None]) -> tuple[int, float]:
    began, counted = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < SECONDS:
        step()
        counted += 1
    return counted, seconds


def count_together(step: Callable[[], None]) -> tuple[int, float]:
    """The same where the rank 0 says when it is enough: a step that a peer does not take would hang."""
    import torch
    import torch.distributed as dist

    began, counted, enough = time.perf_counter(), 0, torch.zeros(1)
    while not enough:
        for _ in range(10):
            step()
        counted += 10
        enough[0] = float(time.perf_counter() - began >= SECONDS)
        dist.broadcast(enough, 0)
    seconds = time.perf_counter() - began
    dist.barrier()  # a rank that leaves while another still sends would end it by SIGABRT
    dist.destroy_process_group()
    return counted, seconds


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


def rate(launcher: str, program: str, tasks: int, environ: Mapping[str, str]) -> float:
    """Steps a second of all tasks together."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).absolute()), program, folder, str(tasks)]
        rates = [float(found) for found in RATE.findall(LAUNCHERS[launcher](program, tasks, command, environ, folder))]
    if len(rates) != tasks:
        raise RuntimeError(f"{len(rates)} of {tasks} programs of {program} {launcher} said their rate")
    return sum(rates) / (tasks if program == "ddp" else 1)


def measure(runs: int) -> list[object]:
    import statistics

    import figures

    rows: list[object] = []
    with figures.place() as environ:
        for program, title in PROGRAMS.items():
            for tasks in TASKS:
                rates: dict[str, list[float]] = {launcher: [] for launcher in LAUNCHERS}
                for _ in range(runs):
                    for launcher, measured in rates.items():
                        measured.append(rate(launcher, program, tasks, environ))
                best = [max(pair) for pair in zip(rates["torchrun"], rates["by hand"], strict=True)]
                note = ", ".join(f"{name} {statistics.median(rates[name]):.0f}" for name in ("torchrun", "by hand"))
                rows.append(
                    figures.Row(
                        f"{title}, {tasks} {'task' if tasks == 1 else 'tasks'}", rates["ours"], "steps/s",
                        peer_name="the faster", peer=best, least=0.98, note=note, more_is_better=True,
                    )
                )  # fmt: skip
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in PROGRAMS:
        train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        import figures

        figures.main(measure, 3, __doc__)  # type: ignore[arg-type]
