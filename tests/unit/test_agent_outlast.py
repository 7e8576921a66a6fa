"""Work on a storage that is away."""

from __future__ import annotations

import asyncio
import errno
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.agent.attempt import storage_retry as outlast
from trainmaster.agent.attempt.threads import Threads
from trainmaster.core.errors import StorageFailed
from trainmaster.log.storage import storage_failed


def failure(number: int) -> StorageFailed:
    cause = OSError(number, "it said")
    made = storage_failed("store a file", "hdfs://h/x", cause)
    made.__cause__ = cause
    return made


class Storage:
    """Fails with each of `failures`, then works."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures, self.told = list(failures), []

    def work(self) -> str:
        if self.failures:
            raise self.failures.pop(0)
        return "stored"

    def run(self, patience: float, halt: threading.Event | None = None) -> Any:
        place: Any = SimpleNamespace(threads=Threads(), patience=patience)

        def report(kind: str, **fields: Any) -> None:
            self.told.append((kind, fields["what"]))

        return asyncio.run(outlast.retrying_storage(place, halt or threading.Event(), report, self.work, ()))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlast, "AGAIN", 0.01)


def test_a_storage_that_comes_back_is_waited_for_and_that_is_reported_once() -> None:
    storage = Storage(failure(errno.ECONNREFUSED), failure(errno.EAGAIN), failure(errno.ETIMEDOUT))
    assert storage.run(60) == "stored"
    assert storage.told == [("warned", "its storage is away")]


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.ENOENT, errno.ENOTDIR])
def test_what_no_waiting_mends_fails_at_once(number: int) -> None:
    storage = Storage(failure(number))
    with pytest.raises(StorageFailed):
        storage.run(60)
    assert storage.told == []


def test_a_failure_of_no_storage_is_not_waited_for() -> None:
    with pytest.raises(ConnectionRefusedError):
        Storage(ConnectionRefusedError(errno.ECONNREFUSED, "somebody else")).run(60)


def test_patience_ends() -> None:
    storage = Storage(*(failure(errno.EIO) for _ in range(10_000)))
    with pytest.raises(StorageFailed):
        storage.run(0.1)
    assert len(storage.failures) < 10_000 - 1


def test_who_is_stopped_waits_no_more() -> None:
    halt = threading.Event()
    halt.set()
    with pytest.raises(StorageFailed):
        Storage(failure(errno.EIO)).run(60, halt)
