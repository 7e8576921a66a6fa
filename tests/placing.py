"""Tasks of a formation on this machine, and the programs that a test starts as these."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import attrs

from trainmaster.core.machine.formation import Formation, Peer
from trainmaster.core.machine.ranks import Member, assign

EXAMPLES = Path(__file__).parents[1] / "examples"
LIMIT = 240.0  # s that a program may take; reached only by a failure


def free_port(host: str = "127.0.0.1") -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def formed(*tasks: str, copies: int = 1, address: str = "127.0.0.1", generation: int = 1) -> Formation:
    """A formation of tasks like worker:1 on this machine, each with ports that are free."""
    members = []
    for task in tasks:
        role, _, index = task.partition(":")
        members.append(Member(task, role, int(index), "here", copies, role not in ("ps", "evaluator")))
    ranks = {rank.task: rank for rank in assign(members)}
    peers = [
        Peer(
            member.task,
            member.role,
            member.index,
            address,
            {"rendezvous": free_port(address), "tensorflow": free_port(address)},
            ranks.get(member.task),
            copies,
        )
        for member in members
    ]
    return Formation("digits-abc234", generation, tuple(peers), restarts=generation - 1)


@attrs.define
class Program:
    """A started program, and what it said."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait(self, limit: float = LIMIT) -> int:
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in {limit} s:\n{self.text}") from None

    def succeed(self) -> str:
        status = self.wait()
        assert status == 0, f"status {status}:\n{self.text}"
        return self.text

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


Start = Callable[..., Program]
Place = Callable[..., list[Program]]
