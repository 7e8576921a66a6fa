"""Rows a second that a program reads from its feed, in batches of 128, in the form of each framework, beside the feed itself.

    python benchmarks/feed_readers.py [--runs 5]

A row is 784 float32 and a label. The ring, its owner and its feeder are those of `feed_ring.py`, in processes of their own, as is the
reader. The peer takes the ring's batches as they come (some 1 MiB) and looks at the labels alone, as do all others: what is measured is the
way of the values into the framework's arrays, not what a program does with them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import feed_ring
import figures

BATCH = 128
WANTED = 0.9  # of the feed's rate
COLUMNS = ("x", "label")


def batches(form: str) -> Iterator[Any]:
    """Yield the sum of each batch's labels."""
    from trainmaster.runtime import feed

    if form == "feed":
        return (batch["label"].sum() for batch in feed.open())
    if form == "numpy":
        return (batch["label"].sum() for batch in feed.batches("input", BATCH))
    if form == "torch":
        from torch.utils.data import DataLoader

        return (int(label.sum()) for _, label in DataLoader(feed.torch("input", BATCH, COLUMNS), batch_size=None))
    return (label.numpy().sum() for _, label in feed.tf("input", BATCH, COLUMNS))


def read(form: str, path: str, go: Any, rate: Any) -> None:
    os.environ["TRAINMASTER_FEED_INPUT"] = path
    if form == "torch":
        import torch

        torch.set_num_threads(1)
    if form == "tensorflow":
        import tensorflow  # noqa: F401
    go.wait()
    begin = time.perf_counter()
    total = sum(map(int, batches(form)))
    rate.send(total / (time.perf_counter() - begin))
    assert total == feed_ring.ROWS * feed_ring.BATCHES  # each label is 1


def rate(form: str) -> float:
    """Return the rows a second from the feeder's first batch to the reader's last."""
    processes = feed_ring.PROCESSES
    with tempfile.TemporaryDirectory() as folder:
        path, (ready, theirs), go = f"{folder}/ring.feed", processes.Pipe(), processes.Barrier(2)
        answer, rates = processes.Pipe(duplex=False)
        owner = processes.Process(target=feed_ring.own, args=(path, theirs))
        owner.start()
        ready.recv()
        feeder = processes.Process(target=feed_ring.feed_ring, args=(path, go))
        reader = processes.Process(target=read, args=(form, path, go, rates))
        feeder.start()
        reader.start()
        feeder.join()
        ready.send(None)  # the feed has ended
        measured = float(answer.recv())
        reader.join()
        ready.send(None)
        owner.join()
    return measured


def measure(runs: int) -> list[figures.Row]:
    forms = ("feed", "numpy", "torch", "tensorflow")
    rates: dict[str, list[float]] = {form: [] for form in forms}
    for _ in range(runs):
        for form in forms:
            rates[form].append(rate(form) / 1000)
    return [
        figures.Row(
            f"batches of {BATCH} as {form}", rates[form], "k rows/s", peer_name="the feed", peer=rates["feed"], least=WANTED,
            more_is_better=True,
        )
        for form in forms[1:]
    ]  # fmt: skip


if __name__ == "__main__":
    sys.path.insert(0, str(figures.ROOT / "src"))
    figures.main(measure, 5, __doc__)
