"""A storage that hangs instead of failing, as a mount whose server is away: nothing waits for it in silence, and a user can end the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance.engines import Engine, workers
from parts import freezing
from waiting import until

pytestmark = pytest.mark.needs("local-master")


def test_a_job_whose_log_hangs_says_so_and_can_be_killed(engine: Engine, tmp_path: Path) -> None:
    place, running = tmp_path / "mount", engine.folder / "running"
    place.mkdir()
    with freezing(place, tmp_path / "image") as freeze:
        program = f"trap 'rm {running}; exit 0' TERM; touch {running}; while :; do sleep 0.1; done"
        job = engine.submit(workers(program), storage=str(place))
        until(running.exists, what="the program")
        job.until_status("a start on record", lambda status: status["tasks"][0]["state"] == "running")
        freeze(True)
        try:
            assert engine.tm("kill", "--no-wait", job.id).returncode == 0
            until(lambda: not running.exists(), what="the program's end, though nothing can be written")
            waiting = engine.tm("status", job.id).stdout
        finally:
            freeze(False)
        assert "it has not answered for" in waiting
        assert engine.tm("kill", job.id).returncode in (0, 3)  # its end, on record or not
