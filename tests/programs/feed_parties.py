"""The parties of a feed, each a process of its own: `own PATH SIZE`, `feed PATH STAGE PARTITION BATCHES ROWS`, `read PATH`, and others.

Each prints a line for what it has done; an owner carries out the commands that it reads from stdin.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from array import array
from pathlib import Path
from typing import Any

from trainmaster.core.errors import EngineFailed
from trainmaster.runtime.feed.channel import Channel, FeedError
from trainmaster.runtime.feed.feeder import Feeder
from trainmaster.runtime.feed.layout import Column, Layout
from trainmaster.runtime.feed.reader import Reader

WIDTH = 784


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


def columns(stage: int, partition: int, batch: int, rows: int) -> list[Column]:
    """A batch whose values are all its own number."""
    mark = stage * 1_000_000 + partition * 1000 + batch
    return [
        Column("x", "<f4", array("f", [mark]) * (rows * WIDTH), shape=[WIDTH]),
        Column("label", "<i8", array("q", [mark]) * rows),
    ]


async def own(path: str, size: str) -> None:
    from trainmaster.data.feed.owner import Owner

    owner = Owner(Path(path), int(size))
    try:
        owner.open()
    except EngineFailed as error:
        say(str(error))
        return
    say("ready")
    ring = owner.ring
    loop = asyncio.get_running_loop()
    while command := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if command == "figures":
            fed, read = ({str(key): value.to_json() for key, value in part.items()} for part in (ring.fed, ring.read))
            say(
                {"fed": fed, "read": read, "repeated": ring.repeated, "free": ring.free, "size": ring.size, "held": ring.held,
                 "queued": ring.queued, "waiting": ring.waiting}
            )  # fmt: skip
        else:
            if command == "end":
                ring.end()
                owner.settle()
            else:
                getattr(owner, command)()
            say(command)
    owner.close()


def feed(path: str, stage: str, partition: str, batches: str, rows: str) -> None:
    with Feeder(path) as feeder:
        for batch in range(int(batches)):
            if not feeder.put(
                (int(stage), int(partition), batch), columns(int(stage), int(partition), batch, int(rows))
            ):
                say("stopped")
                return
            say(batch)
        say("flushed" if feeder.flush() else "stopped")


def hang(path: str, where: str) -> None:
    """Go on to a place in the writing of batch (0, 0, 0), and stay there."""
    channel = Channel(path, "feed")
    layout = Layout(columns(0, 0, 0, 10))
    if where != "greeted":
        channel.send({"op": "reserve", "number": [0, 0, 0], "size": layout.size, "rows": layout.rows})
        answer = channel.receive()
        assert answer is not None
        if where in ("half", "written"):
            content = bytearray(layout.size)
            layout.write(memoryview(content))
            end = layout.size // 2 if where == "half" else layout.size
            channel.memory[answer["at"] : answer["at"] + end] = content[:end]
        if where == "written":
            channel.send({"op": "written"})
    say(where)
    signal.pause()


def fork(path: str) -> None:
    """Take a batch, and have a child read, and end with its copy of the batch."""
    reader = Reader(path)
    batch = reader.read()
    if not (child := os.fork()):
        try:
            reader.read()
        except FeedError as error:
            say(f"child: {error}")
        del batch
        sys.exit()
    os.waitpid(child, 0)
    say("child has ended")
    sys.stdin.readline()
    assert batch is not None
    say(float(batch["x"][0, 0]))
    del batch
    reader.read()


def leave(path: str) -> None:
    """Read to the end, and end with the last batches in hand."""
    global kept
    kept = list(Reader(path))
    for batch in kept:
        say(batch.number)
    say("end")


def read(path: str, keep: str = "") -> None:
    """Print the number of each batch, and whether its values are its own. `keep`: stay with the first so many batches."""
    reader, kept = Reader(path), []
    while (batch := reader.read()) is not None:
        stage, partition, number = batch.number
        mark = stage * 1_000_000 + partition * 1000 + number
        say([batch.number, batch.rows, bool((batch["x"] == mark).all() and (batch["label"] == mark).all())])
        if keep:
            kept.append(batch)
            if len(kept) == int(keep):
                signal.pause()
        del batch
    say("end")


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    try:
        result = globals()[name](*arguments)
        if result is not None:
            asyncio.run(result)
    except FeedError as error:
        say(f"{type(error).__name__}: {error}")
        sys.exit(1)
