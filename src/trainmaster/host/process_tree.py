"""Find a whole tree of processes, wait for it, end it.

The agent is a child subreaper, so whatever a program starts stays among the agent's descendants, however often it forks and whichever
sessions it makes. The children that the agent started for itself (`trainmaster.host.children`) are left out, with all below them.
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
LOOKS = 5  # at a tree whose processes come and go, before all of /proc is walked
_LOOK_AGAIN = 0.5  # s after which a tree is looked at again though nothing of it ended


def descendants(root: int) -> list[Process]:
    """Return all processes below `root`, zombies too. Our own children and all below them are left out.

    The kernel's lists of children are read: a walk of the whole of /proc takes 7 ms of a core with 180 processes, and between a death and
    the next start an agent looks ten times. A list may lack a child while another one is reaped (proc(5)), and a child may fork and end
    between two reads. So two looks in a row must see the same processes, the same of them dead: what a dead one left has a new parent then.
    """
    last: set[tuple[int, int, bool]] | None = None
    for _ in range(LOOKS if _lists_children(root) else 0):
        tree = kin(root)
        seen = {(process.pid, process.start, process.alive) for process in tree}
        if seen == last:
            return tree
        last = seen
    return _everyone_below(root)


def kin(root: int) -> list[Process]:
    """Return the same by a single look, which is not quite exact: for sampling, not for ending."""
    if not _lists_children(root):
        return _everyone_below(root)
    with children.STARTING:
        return _below(root, _children)


def _lists_children(pid: int) -> bool:
    """Tell whether this kernel has lists of children (CONFIG_PROC_CHILDREN)."""
    return os.path.exists(f"/proc/{pid}/task/{pid}/children")


def _everyone_below(root: int) -> list[Process]:
    """Return the same by a walk of the whole of /proc."""
    children_of: dict[int, list[Process]] = {}
    with children.STARTING:
        for process in linux.everyone():
            children_of.setdefault(process.parent, []).append(process)
        return _below(root, lambda pid: children_of.get(pid, []))


def _children(pid: int) -> list[Process]:
    pids: list[int] = []
    threads: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile, so it has none
        threads = os.listdir(f"/proc/{pid}/task")
    for thread in threads:
        # Where a thread ended, its children are another thread's now.
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file,
        ):
            pids += map(int, file.read().split())
    return [process for child in pids if (process := linux.look(child)) is not None]


def _below(root: int, children_of: Callable[[int], list[Process]]) -> list[Process]:
    tree: list[Process] = []
    seen = {root, *children.PIDS}
    parents = [root]
    while parents:
        for process in children_of(parents.pop()):
            if process.pid not in seen:
                seen.add(process.pid)
                tree.append(process)
                parents.append(process.pid)
    return tree


def send_group(group: int, number: int) -> bool:
    """Signal a process group. Return False where it is empty, or all in it is another user's. Raises ValueError for a number by which
    kill(2) means everybody.
    """
    if group <= 1:
        raise ValueError(f"{group} is not the process group of a program")
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


async def ended(processes: Iterable[Process], within: float) -> None:
    """Return when one of `processes` has ended (at once where one already has), or after `within` seconds."""
    loop = asyncio.get_running_loop()
    first_end: asyncio.Future[None] = loop.create_future()
    descriptors: list[int] = []

    def set_ended() -> None:
        if not first_end.done():
            first_end.set_result(None)

    try:
        for process in processes:
            try:
                descriptor = linux.pidfd(process.pid)
            except ProcessLookupError:
                return
            descriptors.append(descriptor)
            loop.add_reader(descriptor, set_ended)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await first_end
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)
            os.close(descriptor)


async def wait_until_gone(select: Callable[[], list[Process]], within: float) -> list[Process]:
    """Wait until `select` returns no living process, or for `within` seconds. Return the processes that still live."""
    deadline = time.monotonic() + within
    while True:
        alive = [process for process in select() if process.alive]
        remaining = deadline - time.monotonic()
        if not alive or remaining <= 0:
            return alive
        await ended(alive, min(remaining, _LOOK_AGAIN))


async def end_all(root: int, within: float = END_WITHIN) -> list[Process]:
    """SIGKILL everything below `root` until nothing is left. Return those that withstood it for `within` seconds, as another user's do.

    Nothing is left where two looks in a row see nothing alive: who has forked and ended during one look hides its child from it.
    """
    deadline, was_empty = time.monotonic() + within, False
    while True:
        alive = [process for process in descendants(root) if process.alive]
        remaining = deadline - time.monotonic()
        if remaining <= 0 or (was_empty and not alive):
            return alive
        was_empty = not alive
        for process in alive:
            with contextlib.suppress(PermissionError):
                linux.send(process.pid, process.start, signal.SIGKILL)
        if alive:
            await ended(alive, min(remaining, _LOOK_AGAIN))


def reap_orphans(root: int, ours: Collection[int]) -> None:
    """Reap the zombies whose parent is now `root` (this process), except children that someone waits for (`ours`)."""
    for process in descendants(root):
        if process.state == "Z" and process.parent == root and process.pid not in ours:
            _reap(process.pid)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # someone else reaped it after all
        os.waitpid(pid, os.WNOHANG)


class Orphans:
    """Reap zombies that were reparented to us, each when seen a second time: anybody who waits for a child of ours comes first."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def reap(self, processes: Iterable[Process], ours: Collection[int]) -> None:
        our_pid = os.getpid()
        zombies = {(p.pid, p.start) for p in processes if p.state == "Z" and p.parent == our_pid and p.pid not in ours}
        for pid, _start in zombies & self._seen:
            _reap(pid)
        self._seen = zombies
