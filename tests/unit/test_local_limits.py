"""A program's memory limit as the kernel keeps it, on the machine as it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from parts import need_control_groups
from waiting import until

from trainmaster.host import limits, places
from trainmaster.host.limits import MemoryLimit

MIB = 1 << 20
_ALLOCATE = "import sys; data = b'x' * (int(sys.argv[1]) << 20); print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def limit() -> MemoryLimit:
    """A group of 64 MiB, removed by the test. Without the right to make one there is nothing to see: see below."""
    need_control_groups()
    limit = MemoryLimit.create("job-1", "worker:0", 64 * MIB)
    assert limit is not None
    return limit


def allocate(limit: MemoryLimit, mebibytes: int) -> subprocess.Popen[bytes]:
    """A program that joins the group between fork and exec, and takes so much memory."""
    return subprocess.Popen(
        [sys.executable, "-c", _ALLOCATE, str(mebibytes)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=limit.add,
    )  # fmt: skip


def test_a_program_over_its_limit_is_killed_and_the_figures_say_so(limit: MemoryLimit) -> None:
    with allocate(limit, 200) as program:
        assert program.wait() == -signal.SIGKILL
    figures = limit.exceeded()
    assert figures is not None
    assert figures["limit"] == 64 * MIB
    assert 60 * MIB <= figures["used"] <= 65 * MIB
    assert limit.remove()
    assert not limit.folder.exists()
    assert list(places.job_dir("job-1").iterdir()) == []
    places.remove_job_dir("job-1")


def test_a_program_within_its_limit_is_let_be_and_removing_ends_it(limit: MemoryLimit) -> None:
    with allocate(limit, 20) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"held\n"
        assert limit.exceeded() is None
        assert limit.processes() == [program.pid]
        assert limit.remove()
        assert program.wait() == -signal.SIGKILL
    places.remove_job_dir("job-1")


def test_each_attempt_has_a_group_of_its_own(limit: MemoryLimit) -> None:
    other = MemoryLimit.create("job-1", "worker:0", 64 * MIB)
    assert other is not None
    assert other.folder != limit.folder
    limits.remove_groups("job-1", os.getpid() + 1)
    assert limit.folder.exists()
    limits.remove_groups("job-1", os.getpid())
    assert not limit.folder.exists()
    assert not other.folder.exists()
    places.remove_job_dir("job-1")


def test_where_no_group_can_be_made_there_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_parent", lambda: None)
    assert MemoryLimit.create("job-1", "worker:0", 64 * MIB) is None


def _unified(folder: Path, **files: str) -> MemoryLimit:
    """A folder with the files that version 2 of control groups has: only their reading is tried so."""
    folder.mkdir()
    for name, text in {"memory.max": str(64 * MIB), **files}.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    return MemoryLimit(folder, 64 * MIB)


def test_the_figures_of_version_2_are_read(tmp_path: Path) -> None:
    quiet = _unified(tmp_path / "quiet", memory_events="low 0\nhigh 0\nmax 3\noom 0\noom_kill 0\n")
    assert quiet.exceeded() is None
    killed = "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n"
    peak = _unified(tmp_path / "peak", memory_events=killed, memory_peak=f"{63 * MIB}\n")
    assert peak.exceeded() == {"used": 63 * MIB, "limit": 64 * MIB}
    old = _unified(tmp_path / "old", memory_events=killed)
    assert old.exceeded() == {"used": 64 * MIB, "limit": 64 * MIB}


@pytest.mark.parametrize(
    ("controller", "groups", "mounts", "expected"),
    [
        ("memory", "4:memory:/a/b\n", "35 31 0:32 / {root} rw - cgroup cgroup rw,memory", "a/b"),
        ("memory", "4:memory:/docker/x\n", "35 31 0:32 /docker/x {root} rw - cgroup cgroup rw,memory", "."),
        ("memory", "0::/user.slice/a.scope\n", "35 31 0:32 / {root} rw - cgroup2 cgroup2 rw", "user.slice/a.scope"),
        ("cpu", "2:cpu,cpuacct:/a\n", "35 31 0:32 / {root} rw - cgroup cgroup rw,cpu,cpuacct", "a"),
        ("memory", "0::/../moved\n", "35 31 0:32 / {root} rw - cgroup2 cgroup2 rw", "."),
    ],
)
def test_our_group_is_found_whatever_is_mounted(
    controller: str, groups: str, mounts: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / expected).mkdir(parents=True, exist_ok=True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    told = {"/proc/self/cgroup": groups, "/proc/self/mountinfo": mounts.format(root=tmp_path) + "\n"}
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: told.get(str(path)) or read(path))
    assert limits.ancestry(controller)[0] == tmp_path / expected


def test_a_limit_is_gone_with_its_job_when_the_maker_is_killed(limit: MemoryLimit) -> None:
    with allocate(limit, 1) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"held\n"
        limits.remove_groups("job-1")
        until(lambda: program.poll() is not None)
    assert not limit.folder.exists()
    places.remove_job_dir("job-1")
