"""A whole tree of processes: finding it, waiting for it, ending it.

The agent is a child subreaper, so whatever a program starts stays among the agent's descendants, however often it forks and whichever
sessions it makes. What the agent started for itself (`trainmaster.host.children`) is left out, with all that is theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable

from trainmaster.host import children, linux
from trainmaster.host.linux import Process

END_WITHIN = 10.0  # s until a process that SIGKILL does not end (it hangs in the kernel) is given up
_LOOK_AGAIN = 0.5  # s after which a tree is looked at again though nothing of it ended


def descendants(root: int) -> list[Process]:
    """All processes below `root`, zombies too, by a walk of the whole of /proc; our own children and what is below them are left out."""
    born: dict[int, list[Process]] = {}
    with children.STARTING:
        for process in linux.everyone():
            born.setdefault(process.parent, []).append(process)
        return _below(root, lambda pid: born.get(pid, []))


def kin(root: int) -> list[Process]:
    """The same, cheaper and only nearly exact (proc(5), `children`): for sampling, not for ending."""
    if not os.path.exists(f"/proc/{root}/task/{root}/children"):
        return descendants(root)
    with children.STARTING:
        return _below(root, _children)


def _children(pid: int) -> list[Process]:
    pids: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile, so it has none
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                pids += map(int, file.read().split())
    return [found for child in pids if (found := linux.look(child)) is not None]


def _below(root: int, born_of: Callable[[int], list[Process]]) -> list[Process]:
    found: list[Process] = []
    seen = {root, *children.PIDS}
    parents = [root]
    while parents:
        for process in born_of(parents.pop()):
            if process.pid not in seen:
                seen.add(process.pid)
                found.append(process)
                parents.append(process.pid)
    return found


def send_group(group: int, number: int) -> bool:
    """Signal a process group; False where nobody is in it any more. Raises ValueError for what kill(2) takes for everybody."""
    if group <= 1:
        raise ValueError(f"{group} is no process group of a program")
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


async def ended(processes: Iterable[Process], within: float) -> None:
    """Return when one of `processes` ended (at once, where one has), or after `within` seconds."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    descriptors: list[int] = []

    def tell() -> None:
        if not over.done():
            over.set_result(None)

    try:
        for process in processes:
            try:
                descriptor = linux.pidfd(process.pid)
            except ProcessLookupError:
                return
            descriptors.append(descriptor)
            loop.add_reader(descriptor, tell)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await over
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)
            os.close(descriptor)


async def wait_until_gone(select: Callable[[], list[Process]], within: float) -> list[Process]:
    """Wait until `select` finds no living process, or for `within` seconds; what then still lives."""
    until = time.monotonic() + within
    while True:
        alive = [process for process in select() if process.alive]
        left = until - time.monotonic()
        if not alive or left <= 0:
            return alive
        await ended(alive, min(left, _LOOK_AGAIN))


async def end_all(root: int, within: float = END_WITHIN) -> list[Process]:
    """SIGKILL everything below `root` until nothing is left; what withstood that for `within` seconds."""
    until = time.monotonic() + within
    while True:
        alive = [process for process in descendants(root) if process.alive]
        left = until - time.monotonic()
        if not alive or left <= 0:
            return alive
        for process in alive:
            linux.send(process.pid, process.start, signal.SIGKILL)
        await ended(alive, min(left, _LOOK_AGAIN))


def reap_orphans(root: int, ours: Collection[int]) -> None:
    """Reap the zombies that fell to `root` (this process), but for children that someone waits for."""
    for process in descendants(root):
        if process.state == "Z" and process.parent == root and process.pid not in ours:
            _reap(process.pid)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # someone else reaped it after all
        os.waitpid(pid, os.WNOHANG)


class Orphans:
    """Reaps zombies that were reparented to us, each when seen a second time: whoever else waits for a child of ours was first."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def reap(self, processes: Iterable[Process], ours: Collection[int]) -> None:
        me = os.getpid()
        zombies = {(p.pid, p.start) for p in processes if p.state == "Z" and p.parent == me and p.pid not in ours}
        for pid, _start in zombies & self._seen:
            _reap(pid)
        self._seen = zombies
