"""The wall clock jumps by an hour, forward and back, while a job runs and between two of its masters: no limit passes early or late.

A library that is preloaded shifts the wall clock of all processes of the job, by what a file says; other clocks go on.
"""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from chaos.faults import KillMaster, KillProgram
from conformance.engines import Local, workers
from parts import not_run
from waiting import until

SHIFT = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t shift(void) {
    char text[32] = {0};
    int file = open(getenv("CLOCK_SHIFT"), O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    return size > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
"""
HOUR = 3600


@pytest.fixture
def shift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose number of seconds is added to the wall clock of processes that begin from now on."""
    if (compiler := shutil.which("cc")) is None:
        not_run("there is no cc on the path", "apt-get install gcc")
    source, library, file = tmp_path / "shift.c", tmp_path / "shift.so", tmp_path / "shift"
    source.write_text(SHIFT)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    file.write_text("0")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("CLOCK_SHIFT", str(file))
    return file


def test_the_wall_clock_jumps(engine: Local, shift: Path) -> None:
    choice, go = random.Random(1), engine.folder / "go"
    program = f"echo ready; while ! test -e '{go}'; do sleep 0.05; done; date +%s"
    job = engine.submit(
        workers(program, 2, restart={"scope": "task", "limit": 9}),
        timeouts={"job": "30m", "start": "10m", "stall": "10m", "grace": "30s"},
    )
    for task in ("worker:0", "worker:1"):
        job.until_line("ready", task)
    for epoch, seconds in enumerate((HOUR, -HOUR), 2):
        shift.write_text(str(seconds))
        assert KillProgram().strike(job.id, choice)
        until(lambda epoch=epoch: sum(task["attempt"] for task in job.status()["tasks"]) == epoch + 1, what=job.said)
        assert KillMaster().strike(job.id, choice)
        job.until_status("a new master", lambda status, epoch=epoch: status["epoch"] == epoch)
        job.until_status("both run", lambda status: [task["state"] for task in status["tasks"]] == ["running"] * 2)
    go.touch()
    job.succeeded()
    times = [event["at"] for event in job.events()]
    assert all(earlier <= later for earlier, later in itertools.pairwise(times))
    assert times[-1] - times[0] < HOUR / 2, "the job's own time did not jump"
    shown = {int(line) for task in ("worker:0", "worker:1") for line in job.lines(task) if line.isdigit()}
    assert max(shown) < times[-1] - HOUR / 2, "programs have seen the clock that is behind"
