"""What the next command clears away after everything of a job was killed, and what it leaves alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from local_machine import Master, forked, of, request
from parts import need_control_groups
from waiting import until

from trainmaster.core.errors import BadInput
from trainmaster.core.machine.stimuli import Granted
from trainmaster.core.spec.job import Job
from trainmaster.engines.local import client, launch
from trainmaster.engines.local.client import LocalClient
from trainmaster.engines.local.ledger import Ledger
from trainmaster.engines.local.sweep import sweep
from trainmaster.host import places, ports, processes
from trainmaster.host.limits import MemoryLimit

TWO = of(cores=2.0)


def _a_job(program: Path) -> None:
    """A master with one agent, whose program has left its session, and a control group and a port of its own."""

    async def scene() -> None:
        job = Master("a", TWO, {"w:0": {"program": str(program)}})
        await job.open(1)
        job.side.ask([request("w:0")])
        await job.told_of(Granted)

    asyncio.new_event_loop().run_until_complete(scene())
    until(program.exists)
    MemoryLimit.create("a", "w:0", 1 << 26)
    held = _a_job.held = ports.Ports()  # type: ignore[attr-defined]
    held.take()


def test_all_that_a_killed_job_left_is_cleared_and_the_job_is_resumable(tmp_path: Path) -> None:
    need_control_groups()
    program = tmp_path / "program"
    with forked(lambda: _a_job(program)):
        assert sweep() == [], "a live job is left alone"
        assert LocalClient().application_state("a")[0] == "running"
        groups = [path.readlink() for path in places.job_dir("a").glob("group.*")]
        assert len(Ledger().entries()) == 1
        for kind in ("template", "agent"):
            for made in processes.living("a", kind):
                processes.send(made.process, signal.SIGKILL)
    until(lambda: not processes.living("a", "template", "agent"), what="a killed process takes a moment to be gone")
    assert groups
    assert processes.start_time(int(program.read_text()))
    assert sweep() == ["a"]
    assert processes.start_time(int(program.read_text())) is None
    assert not any(group.exists() for group in groups)
    assert Ledger().entries() == []
    assert not (places.runtime_dir() / "a").exists()
    assert list(places.shared_dir("ports").iterdir()) == []
    assert sweep() == ["a"], "it stays so until it is resumed"
    assert LocalClient().application_state("a")[0] == "resumable"
    places.set_live("a", False)
    assert sweep() == []


@pytest.mark.parametrize("name", ["devices", "ports", "spark"])
def test_what_all_jobs_share_is_left_alone(name: str) -> None:
    held = places.shared_dir(name) / "held"
    held.touch()
    os.utime(held.parent, (time.time() - 3600,) * 2)
    sweep()
    held.unlink()  # it is there
    with pytest.raises(ValueError, match="another is not a shared folder"):
        places.shared_dir("another")


def test_a_folder_without_processes_is_left_to_a_job_that_is_just_beginning() -> None:
    folder = places.job_dir("b")
    sweep()
    assert folder.exists()
    os.utime(folder, (time.time() - 3600,) * 2)
    sweep()
    assert not folder.exists()


def test_another_nodes_jobs_are_not_ours_to_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(places, "node_name", lambda: "elsewhere")
        places.set_live("c", True)
        assert sweep() == ["c"]
    assert sweep() == []
    (places.state_dir() / "live" / "c@elsewhere").unlink()


def test_a_sweep_with_nothing_to_do_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from trainmaster.engines.local.sweep import sweep\n"
        "sweep()\n"
        "print(*{'sqlite3', 'asyncio', 'ctypes', 'shutil', 'subprocess'} & set(sys.modules))\n"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []


def test_killing_a_job_whose_master_does_not_answer() -> None:
    async def scene() -> None:
        job = Master("a", TWO, {"w:0": {"deaf": False}})
        await job.open(1)
        job.side.ask([request("w:0")])
        await job.told_of(Granted)

    with forked(lambda: asyncio.new_event_loop().run_until_complete(scene())):
        LocalClient().end("a")
        assert processes.living("a") == []
    assert sweep() == []


def test_a_job_is_found_by_its_storage_and_its_fate_is_reported() -> None:
    local = LocalClient()
    places.job_storage("done").mkdir(parents=True)
    assert local.jobs() == ["done"]
    assert (local.application_state("done")[0], local.application_state("other")[0]) == ("ended", "unknown")


def test_what_can_never_run_here_is_refused_at_submit() -> None:
    cores, plain = float(os.cpu_count() or 1) + 1, Job(roles={})
    with pytest.raises(BadInput, match=r"this machine has") as refused:
        LocalClient().check(plain, [request("w:0", cores)])
    assert refused.value.place == "roles.w.resources.cores"
    gang = [request("w:0", 0.5, gang="g", least=1), request("w:1", cores, gang="g", least=1)]
    LocalClient().check(plain, gang)


def test_limits_that_are_too_low_are_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    client.check_limits(10)
    monkeypatch.setattr(client.resource, "getrlimit", lambda which: (256, 256))
    with pytest.raises(BadInput, match="need 464 open files, 256 are allowed"):
        client.check_limits(100)
    monkeypatch.setattr(client.os, "getuid", lambda: 12345)
    monkeypatch.setattr(client.resource, "getrlimit", lambda which: (512, 512))
    with pytest.raises(BadInput, match="need 816 processes, 512 are allowed"):
        client.check_limits(100)


# -- places --


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_runtime_directory_that_others_may_enter_is_refused(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMASTER_RUNTIME_DIR", str(tmp_path / "open"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(BadInput, match=f"others may enter it \\(mode {mode:o}"):
        places.runtime_dir()


def test_a_runtime_directory_that_is_a_link_anothers_or_remote_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMASTER_RUNTIME_DIR", str(tmp_path / "link"))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(BadInput, match="not a directory"):
        places.runtime_dir()
    monkeypatch.setenv("TRAINMASTER_RUNTIME_DIR", str(tmp_path / "mine"))
    with monkeypatch.context() as patch:
        patch.setattr(places, "file_system", lambda path: "nfs4")
        with pytest.raises(BadInput, match="network file system"):
            places.runtime_dir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(BadInput, match="belongs to user"):
            places.runtime_dir()
    assert places.runtime_dir().parent == tmp_path / "mine"


def test_a_socket_whose_path_is_too_long_is_refused() -> None:
    assert places.socket_path("a", "master").name == "master.sock"
    with pytest.raises(BadInput, match="107 are allowed"):
        places.socket_path("a", "x" * 100)
    places.remove_job_dir("a")
    places.check_sockets("a")
    with pytest.raises(BadInput, match="107 are allowed"):
        places.check_sockets("x" * 100)


def test_state_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINMASTER_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert places.state_dir() == Path("/x/trainmaster")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert places.state_dir() == Path("/h/.local/state/trainmaster")


def test_a_process_is_known_by_its_start_too() -> None:
    me = processes.this_process()
    assert me.alive
    assert not processes.Process(me.pid, me.start - 1).alive
    assert not processes.send(processes.Process(me.pid, me.start - 1), signal.SIGKILL)
    with forked(lambda: None) as pid:
        other = processes.process(pid)
        assert other is not None
        assert processes.send(other, signal.SIGKILL)
        until(lambda: not other.alive, what="a zombie counts as dead")


@pytest.mark.parametrize("how", ["writable", "foreign", "link"])
def test_a_job_that_another_user_may_have_made_is_not_taken_up(
    home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    folder = home.state / "jobs" / "a"
    made = tmp_path / "elsewhere" if how == "link" else folder
    made.mkdir(parents=True, mode=0o700)
    (made / "token").write_text("planted")
    (made / "environ.json").write_text('{"environ": {"LD_PRELOAD": "/planted"}, "left_out": [], "allowance": {}}')
    if how == "link":
        folder.parent.mkdir(parents=True)
        folder.symlink_to(made)
    elif how == "writable":
        folder.chmod(0o770)
    else:
        monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    monkeypatch.setattr(launch, "start_master", lambda *_: pytest.fail("a master was started"))
    with pytest.raises(BadInput, match="the job a is not taken up"):
        launch.resume("a")
