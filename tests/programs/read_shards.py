"""Reads the input `train` and writes each record to a file of its own, as its environment says. What the runtime's tests run."""

import io
import json
import os
import signal
import sys
import threading
import time

from trainmaster import runtime


def main() -> None:
    how = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    out = open(sys.argv[1], "a", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115 - one file for the whole run
    mode = how.pop("mode", "all")
    after = how.pop("after", 0)
    stream = runtime.shards("train", **how)
    if mode in ("manual", "slow"):
        prefetched(stream, out, is_slow=mode == "slow")
        return
    if mode == "two-loops":
        two_loops(stream)
        return
    if mode == "epochs":
        for epoch, records in stream.epochs():
            for record in records:
                print(f"{epoch} {record}", file=out, flush=True)
        return
    if mode == "forked":
        forked(stream, out)
        return
    for n, record in enumerate(stream, 1):
        print(record, file=out, flush=True)
        if n == after and mode == "break":
            break
        if n == after and mode == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    print("ended", flush=True)
    if mode == "break":
        sys.stdin.read()  # the program lives on


def prefetched(stream: runtime.Shards, out, is_slow: bool) -> None:
    """One thread reads ahead, another uses what was read; a slow one does so once the first has said that it waits."""
    import queue

    ahead: queue.Queue = queue.Queue(1000)

    def read() -> None:
        for shard in stream.shards(manual=True):
            ahead.put((shard, list(shard.records())))
        ahead.put(None)

    if is_slow:
        sys.stderr = io.StringIO()
    threading.Thread(target=read).start()
    while is_slow and not sys.stderr.getvalue():
        time.sleep(0.01)
    while (item := ahead.get()) is not None:
        shard, records = item
        for record in records:
            print(record, file=out, flush=True)
        shard.done()
    if is_slow:
        print(sys.stderr.getvalue())


def two_loops(stream: runtime.Shards) -> None:
    """One thread has two loops over an input, and the first one stays at its first shard."""
    first = stream.shards()
    next(first)
    for _ in stream:
        pass


def forked(stream: runtime.Shards, out) -> None:
    """Two children with iterators of their own, and one that tries to go on with its parent's."""
    records = iter(stream)
    print(next(records), file=out, flush=True)
    child = os.fork()
    if child == 0:
        try:
            next(records)
        except RuntimeError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            for record in runtime.shards("train"):
                print(record, file=out, flush=True)
            os._exit(0)
        children.append(child)
    for record in records:
        print(record, file=out, flush=True)
    for child in children:
        os.waitpid(child, 0)


main()
