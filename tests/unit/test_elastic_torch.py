"""A round that is broken frees who waits in it, in a collective and while its group is made, though no socket closes."""

from __future__ import annotations

import subprocess
import sys
import time

MEMBER = """
import sys, threading
import torch
from trainmaster.runtime.elastic import BROKEN, Member, Round
from trainmaster.runtime.elastic.torch_groups import Interrupted, Listener

listener = Listener("gloo", torch.device("cpu"))
print(listener.payload, flush=True)
rank, *ports = map(int, sys.stdin.readline().split())
here = Round(1, rank, [Member(f"worker:{index}", 0, "127.0.0.1", str(port), 0, True) for index, port in enumerate(ports)])

def listen():
    for line in sys.stdin:
        listener.heard(BROKEN, int(line))

threading.Thread(target=listen, daemon=True).start()
try:
    group = listener.group(here)
    total = torch.ones(1000)
    group.sum([total])
    print("sum", int(total[0]), flush=True)
    if rank == 2:
        threading.Event().wait()
    group.sum([total])
except Interrupted:
    print("interrupted", flush=True)
"""


class Members:
    """Processes that make a group of three. The last one of three comes into no second collective."""

    def __init__(self, count: int) -> None:
        self.processes = [
            subprocess.Popen([sys.executable, "-c", MEMBER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]

    def begin(self) -> None:
        ports = [self.line(rank) for rank in range(len(self.processes))] + ["9"] * (3 - len(self.processes))
        for rank in range(len(self.processes)):
            self.say(rank, f"{rank} {' '.join(ports)}")

    def say(self, rank: int, text: str) -> None:
        pipe = self.processes[rank].stdin
        assert pipe is not None
        pipe.write(text + "\n")
        pipe.flush()

    def line(self, rank: int) -> str:
        pipe = self.processes[rank].stdout
        assert pipe is not None
        return pipe.readline().strip()

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def test_a_broken_round_frees_a_collective() -> None:
    with Members(3) as members:
        members.begin()
        assert [members.line(rank) for rank in range(3)] == ["sum 3"] * 3
        began = time.monotonic()
        for rank in range(2):
            members.say(rank, "1")
        assert [members.line(rank) for rank in range(2)] == ["interrupted"] * 2
        assert time.monotonic() - began < 30, "far below the timeout of any collective"


def test_a_broken_round_frees_who_waits_for_a_member_that_never_came() -> None:
    with Members(2) as members:
        members.begin()
        began = time.monotonic()
        for rank in range(2):
            members.say(rank, "1")
        assert [members.line(rank) for rank in range(2)] == ["interrupted"] * 2
        assert time.monotonic() - began < 30
