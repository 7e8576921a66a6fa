"""What may hang is done beside the agent's loop: a disk that does not answer, an environment that is fixed up for minutes."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from trainmaster.agent.attempt.activation import fix
from trainmaster.agent.attempt.diagnosis import disk_full
from trainmaster.agent.attempt.program import Outcome
from trainmaster.agent.attempt.threads import answered_within


def test_a_disk_that_hangs_holds_up_neither_the_loop_nor_the_end() -> None:
    hangs = threading.Event()

    async def look() -> tuple[int | None, bool]:
        turned = asyncio.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        free = await answered_within(0.05, lambda: int(hangs.wait(60)))
        return free, turned.is_set()

    began = time.monotonic()
    try:
        assert asyncio.run(look()) == (None, True)
        assert time.monotonic() - began < 30, "the end waited for the thread"
        assert all(thread.daemon for thread in threading.enumerate() if thread.name == "disk")
    finally:
        hangs.set()


def test_what_a_disk_answers_is_returned_and_a_failure_is_no_answer() -> None:
    assert asyncio.run(answered_within(20, lambda: 7)) == 7
    assert asyncio.run(answered_within(20, Path("/not/there").stat)) is None


@pytest.mark.parametrize(("free", "reason"), [(0, "disk-full"), (1 << 30, None), (None, None)])
def test_a_full_disk_is_found_where_it_answers(free: int | None, reason: str | None) -> None:
    failure = disk_full(Outcome("exit", 1), "a line", free)
    assert (failure and failure.reason) == reason


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'",
        "RuntimeError: unable to write to file </torch_123_4>: No space left on device (28)",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "OSError: [Errno 28] No space left on device",
    ],
)
def test_full_shared_memory_is_not_told_as_a_full_disk(line: str) -> None:
    source = '  File "t.py", line 1, in <module>\n    open("/dev/shm/x", "wb").write(data)'
    failure = disk_full(Outcome("exit", 1), f"Traceback\n{source}\n{line}\n", 1 << 30)
    assert failure is not None
    assert failure.figures["detail"] == f"the program met a full /dev/shm: {line}"
    assert "shm" in failure.figures["mend"]


def test_an_environment_that_cannot_be_fixed_up_says_why(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "conda-unpack").touch()
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\necho 'no such prefix' >&2; exit 3\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    with pytest.raises(OSError, match="no such prefix"):
        fix(tmp_path)
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\nexit 0\n")
    fix(tmp_path)
    assert (tmp_path / ".trainmaster-fixed").exists()
