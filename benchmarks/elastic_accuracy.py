"""Accuracy on the digits with two to four workers that come and go, beside three fixed workers: the same within noise?

    python benchmarks/elastic_accuracy.py [--seeds 5] [--first 1]

The program is that of examples/elastic, with a step of four batches of 16 whoever is there, over records that are leased as shards, and a
rate that falls to a twentieth. One seed decides the parameters at the beginning, the order of the shards, and when and to whom something
happens: two workers are killed by SIGKILL, and `tm scale` takes the job down to two and up again to four. The fixed job has the same seed,
and three workers that nobody disturbs. A step is smaller where a member has no records just then, so those that come and go make more.

"Within noise" is Welch's test: the means differ by at most twice the standard error of their difference. So that a spread that happens to
be small does not count as a difference, the error is taken as at least that of one digit of the 360 that are held out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import figures

EPOCHS = 15
STEPS = 1437 * EPOCHS // 64  # at least: of the records of all epochs, 64 a step
PAUSE = 0.015  # s of each step and member where they come and go: so that newcomers find something left to do
LIMIT = 120.0  # s for anything that is waited for, on a machine that is busy
PROGRAM = r"""
import json, os, pathlib, sys, time
import torch
from torch import nn
from trainmaster.runtime import task, torch_data
from trainmaster.runtime.elastic.torch_training import Training

seed, test, pause = int(sys.argv[1]), pathlib.Path(sys.argv[2]), float(sys.argv[3])
steps = int(sys.argv[4])

def parsed(line):
    label, *pixels = map(float, line.split(","))
    return torch.tensor(pixels) / 16, int(label)

def main():
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / steps))
    training = Training(model=model, optimizer=optimizer, scheduler=scheduler, batches_per_step=4)
    with open(f"{task().index}.log", "a") as log:
        for pixels, labels in training.batches(torch_data.loader("train", 16, transform=parsed)):
            before = training.steps
            with training.step():
                time.sleep(pause * training.size)
                nn.functional.cross_entropy(model(pixels), labels).backward()
            if training.steps > before:
                log.write(f"{os.getpid()} {training.steps} {training.size}\n")
                log.flush()
    held = [parsed(line) for path in sorted(test.glob("*.csv")) for line in path.read_text().splitlines()]
    with torch.no_grad():
        guesses = model(torch.stack([pixels for pixels, _ in held])).argmax(1)
    right = int((guesses == torch.tensor([label for _, label in held])).sum())
    draft = pathlib.Path(f"{task().index}.draft")
    draft.write_text(json.dumps({"right": right, "of": len(held), "steps": training.steps}))
    draft.rename(f"{task().index}.result")

main()
"""


class Job:
    """A job that trains in a folder of its own."""

    def __init__(
        self, folder: Path, digits: Path, seed: int, replicas: object, pause: float, environ: Mapping[str, str]
    ) -> None:
        self.folder, self.environ = folder, environ
        (folder / "train.py").write_text(PROGRAM)
        command = [sys.executable, "train.py", str(seed), str(digits / "test"), str(pause), str(STEPS)]
        role = {
            "command": command, "replicas": replicas, "threads": 1, "workdir": "share",
            "resources": {"cores": 0.25, "memory": "1GiB"}, "restart": {"scope": "task", "limit": 9},
        }  # fmt: skip
        train = {"url": f"{digits}/train/*.csv", "as": "shards", "epochs": EPOCHS, "shuffle": True, "seed": seed}
        job = {"name": "accuracy", "framework": "pytorch", "roles": {"worker": role}, "inputs": {"train": train}}
        (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
        self.id = self.tm("submit", "job.yaml").split()[-1].rpartition("/")[2]

    def tm(self, *words: str) -> str:
        command = [figures.TM, *words]
        done = subprocess.run(command, env=dict(self.environ), cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"tm {' '.join(words)}: {done.stderr}")
        return done.stdout

    def rows(self, index: int) -> list[list[int]]:
        """The completed steps of a worker: process, step, members."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / f"{index}.log").read_text().splitlines()[:-1]  # the last may be half written
            return [list(map(int, line.split())) for line in lines]
        return []

    def step(self) -> int:
        return max((row[1] for index in range(4) for row in self.rows(index)[-1:]), default=0)

    def results(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in self.folder.glob("*.result")]

    def until(self, holds: Callable[[], object], what: str) -> None:
        end = time.monotonic() + LIMIT
        while not holds():
            if time.monotonic() > end:
                raise RuntimeError(f"{what} took more than {LIMIT:g} s:\n{self.tm('status', self.id)}")
            time.sleep(0.05)

    def disturb(self, seed: int) -> None:
        """Kill workers and scale the job, at moments that the seed draws."""
        draw = random.Random(seed)

        def kill() -> None:
            trained = [rows for index in range(4) if (rows := self.rows(index))]
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.choice(trained[:2])[-1][0], signal.SIGKILL)

        acts: list[tuple[float, float, Callable[[], object]]] = [
            (0.10, 0.20, kill),
            (0.25, 0.30, lambda: self.tm("scale", self.id, "worker=2")),
            (0.35, 0.40, lambda: self.tm("scale", self.id, "worker=4")),
            (0.75, 0.85, kill),
        ]
        for least, most, act in acts:
            at = round(STEPS * draw.uniform(least, most))
            self.until(lambda at=at: self.step() >= at or self.results(), f"step {at}")  # type: ignore[misc]
            if self.results():
                raise RuntimeError(f"the job ended before step {at}")
            act()

    def outcome(self) -> tuple[float, int, Counter[int]]:
        """The accuracy in %, the steps, and how many of them had how many members."""
        self.until(self.results, "the training")
        sizes = {step: size for index in range(4) for _, step, size in self.rows(index)}
        self.until(lambda: " succeeded" in self.tm("status", self.id), "the end")
        results = self.results()
        if any(result != results[0] for result in results):
            raise RuntimeError(f"members differ: {results}")
        return 100 * results[0]["right"] / results[0]["of"], results[0]["steps"], Counter(sizes.values())


def trained(digits: Path, seed: int, fixed: bool, environ: Mapping[str, str]) -> tuple[float, int, Counter[int], float]:
    """The outcome of a training, and the seconds that it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        replicas, pause = (3, 0.0) if fixed else ({"min": 2, "max": 4}, PAUSE)
        job = Job(Path(folder), digits, seed, replicas, pause, environ)
        try:
            if not fixed:
                job.disturb(seed)
            return *job.outcome(), time.monotonic() - began
        finally:
            subprocess.run([figures.TM, "kill", job.id], env=dict(environ), check=False, capture_output=True)


def main() -> int:
    wanted = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    wanted.add_argument("--seeds", type=int, default=5)
    wanted.add_argument("--first", type=int, default=1, help="the first seed")
    asked = wanted.parse_args()
    print("| seed | come and go: accuracy | steps | with 2, 3, 4 members | s | fixed: accuracy | steps | s |")
    print("|---|---|---|---|---|---|---|---|")
    ours, peer = [], []
    with figures.place() as environ, tempfile.TemporaryDirectory(prefix="tm-bench-") as place:
        data = str(figures.ROOT / "examples" / "digits" / "data.py")
        subprocess.run([sys.executable, data, place], check=True, stdout=subprocess.DEVNULL)
        for seed in range(asked.first, asked.first + asked.seeds):
            accuracy, steps, sizes, seconds = trained(Path(place), seed, False, environ)
            fixed, fixed_steps, _, fixed_seconds = trained(Path(place), seed, True, environ)
            ours.append(accuracy)
            peer.append(fixed)
            counts = ", ".join(str(sizes[size]) for size in (2, 3, 4))
            print(
                f"| {seed} | {accuracy:.2f} % | {steps} | {counts} | {seconds:.0f} | {fixed:.2f} % | {fixed_steps} | {fixed_seconds:.0f} |",
                flush=True,
            )
    spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in (ours, peer)]
    means = [statistics.mean(values) for values in (ours, peer)]
    first, second = (f"{mean:.2f} %, {spread:.2f}" for mean, spread in zip(means, spreads, strict=True))
    print(f"| mean, standard deviation | {first} | | | | {second} | | |\n")
    if asked.seeds < 3:
        print("These are too few seeds to tell what is noise.")
        return 0
    error = max(math.sqrt(sum(spread**2 for spread in spreads) / asked.seeds), 100 / 360)
    difference = means[0] - means[1]
    same = abs(difference) <= 2 * error
    verdict = "the same within noise" if same else "NOT the same within noise"
    print(f"The means differ by {difference:+.2f} points; twice the standard error is {2 * error:.2f}: {verdict}.")
    return not same


if __name__ == "__main__":
    sys.exit(main())
