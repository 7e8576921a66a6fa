"""The sum of an array over the members of a round: `trainmaster.runtime.elastic.all_reduce` beside gloo.

    python benchmarks/all_reduce.py [--runs 5]

2 and 4 processes on this machine add up float32 arrays of 1 and 40 MB. The peer is `torch.distributed.all_reduce` over gloo, in the same
processes, on memory of the same size, in turn with ours. A time is the mean of some calls one after another, on rank 0.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import figures

SIZES = {1: 20, 40: 3}  # MB: calls that make one time
MEMBER = r"""
import json, os, sys, time
import numpy as np
import torch
import torch.distributed as dist
from trainmaster.runtime.elastic.all_reduce import Listener, Ring

torch.set_num_threads(1)
listener = Listener()
print(listener.port, flush=True)
rank, ports, store, sizes, runs = json.loads(sys.stdin.readline())
ring = Ring(listener, "key", "benchmark", 1, rank, [("127.0.0.1", port) for port in ports])
ring.connect()
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=len(ports))

def seconds(call, array, count):
    call(array)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        call(array)
    return (time.perf_counter() - began) / count

times = {}
for megabytes, count in sizes:
    array = np.zeros(megabytes * 250_000, "f4")
    tensor = torch.from_numpy(np.zeros_like(array))
    times[megabytes] = [
        (seconds(ring.all_reduce, array, count), seconds(dist.all_reduce, tensor, count)) for _ in range(runs)
    ]
print(json.dumps(times), flush=True)
ring.close()
dist.destroy_process_group()
"""


def times(members: int, runs: int, environ: dict[str, str]) -> dict[str, list[list[float]]]:
    """The times of ours and of gloo on rank 0, by MB."""
    with contextlib.ExitStack() as ended:
        processes: list[subprocess.Popen[str]] = []
        for _ in range(members):
            command = [sys.executable, "-c", MEMBER]
            process = subprocess.Popen(
                command,
                env=environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(ended.enter_context(process))
            ended.callback(process.kill)
        pipes: Any = [(process.stdin, process.stdout) for process in processes]
        ports = [int(read.readline()) for _, read in pipes]
        for rank, (write, _) in enumerate(pipes):
            store = f"{environ['TRAINMASTER_STATE_DIR']}-{members}"
            write.write(json.dumps([rank, ports, store, list(SIZES.items()), runs]) + "\n")
            write.flush()
        results: list[dict[str, list[list[float]]]] = [json.loads(read.readline()) for _, read in pipes]
        return results[0]


def measure(runs: int) -> list[figures.Row]:
    rows = []
    with figures.place() as environ:
        for members in (2, 4):
            for megabytes, pairs in times(members, runs, environ).items():
                ours, gloo = zip(*pairs, strict=True)
                figure = f"sum of {megabytes} MB over {members} members"
                rows.append(figures.Row(figure, list(ours), "s", None, "gloo", list(gloo)))
    return rows


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
