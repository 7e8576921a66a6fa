"""The lock of a job's master on the submitter's machine."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from trainmaster.host.places import job_storage
from trainmaster.master.client_side import LOCK, is_running, lock_alone


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINMASTER_STATE_DIR", str(tmp_path))
    job_storage("job-1").mkdir(parents=True)
    return job_storage("job-1") / LOCK


def test_one_master_alone_has_the_lock(lock: Path) -> None:
    assert not is_running("job-1")
    with lock.open("w") as first, lock.open("w") as second:
        assert lock_alone(first)
        assert not lock_alone(second)
        assert is_running("job-1")
    assert not is_running("job-1")


def test_a_master_begins_while_somebody_asks_whether_one_runs(lock: Path) -> None:
    tries: list[int] = []
    with lock.open("w") as master, lock.open() as asker:
        fcntl.flock(asker, fcntl.LOCK_SH)

        def flock(file: object, how: int) -> None:
            tries.append(how)
            if len(tries) == 4:  # it was told by now
                real(asker, fcntl.LOCK_UN)
            real(file, how)

        real = fcntl.flock
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fcntl, "flock", flock)
            assert lock_alone(master)
    assert len(tries) == 4
