"""Children that we start for ourselves, while all else below us is swept."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading

import pytest

from trainmaster.host import children
from trainmaster.host import process_tree as processes


def test_what_is_swept_meanwhile_is_not_ours() -> None:
    """A child starts in a thread, at any moment of the sweep that the loop makes."""
    statuses: list[int] = []
    before = set(children.PIDS)

    def work() -> None:
        statuses.extend(children.run(["true"]).returncode for _ in range(50))

    workers = [threading.Thread(target=work) for _ in range(2)]

    def astray() -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "1000"], start_new_session=True)

    async def sweep() -> int:
        swept = 0
        while any(worker.is_alive() for worker in workers):
            stray = astray()
            assert await processes.end_all(os.getpid()) == []
            assert stray.wait() < 0
            swept += 1
        return swept

    for worker in workers:
        worker.start()
    assert asyncio.run(sweep()) > 3
    assert statuses == [0] * 100
    assert before == children.PIDS


def test_what_a_child_says_and_how_long_it_may_take() -> None:
    before = set(children.PIDS)
    said = children.run(["sh", "-c", "echo out; echo wrong >&2; exit 3"])
    assert (said.returncode, said.stdout, said.stderr) == (3, "out\n", "wrong\n")
    with pytest.raises(subprocess.TimeoutExpired):
        children.run(["sleep", "1000"], timeout=0.1)
    with pytest.raises(FileNotFoundError):
        children.run(["/nowhere"])
    assert before == children.PIDS


def test_a_child_is_over_once_it_is_left() -> None:
    with children.started(["sleep", "1000"]) as process:
        assert process.pid not in {found.pid for found in processes.kin(os.getpid())}
        assert process.poll() is None
    assert process.returncode < 0
