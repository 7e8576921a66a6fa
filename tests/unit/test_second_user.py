"""A second user of the machine tries what an attacker would: files, sockets, command lines, shared memory, ports, names."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import listening
import pytest
from another_user import as_another_user
from parts import need_root
from waiting import until

import trainmaster
from trainmaster.host import processes

TM = [sys.executable, "-m", "trainmaster.cli"]
SECRET = os.urandom(16).hex()
WORKER = """
import os, sys, time
from trainmaster import runtime
from trainmaster.ps.job import from_job
runtime.checkpoint.save(1, {{"weights": b"x" * 100000}})
with from_job(1):
    print("trains", flush=True)
    while not os.path.exists({go!r}):
        time.sleep(0.05)
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that all users reach, as /tmp and home directories are, with nothing in it but what Trainmaster makes."""
    need_root()
    with tempfile.TemporaryDirectory(prefix="tm-open-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        for name, variable in (("state", "STATE"), ("run", "RUNTIME")):
            monkeypatch.setenv(f"TRAINMASTER_{variable}_DIR", f"{folder}/{name}")
        before = os.umask(0o022)
        yield Path(folder)
        os.umask(before)


@pytest.mark.usefixtures("home")
def test_another_user_gets_nothing_of_a_job(place: Path) -> None:
    before = set(os.listdir("/tmp")) - {place.name}
    go = place / "go"
    server = [sys.executable, "-m", "trainmaster.ps", "--servers", "1"]
    command = [sys.executable, "-c", WORKER.format(go=str(go))]
    run = trainmaster.submit(
        trainmaster.Job(
            name="private",
            roles={
                "ps": {"command": server, "ports": ["ps"]},
                "worker": {"command": command, "after": ["ps"], "env": {"HF_TOKEN": SECRET}},
            },
            checkpoint={"path": "ckpt"},
        ),
        directory=place,
    )
    browser = place / "browser"  # it stays, and everybody sees its command line
    browser.write_text("#!/bin/sh\nexec sh -c 'sleep 600; true' $1\n")
    browser.chmod(0o755)
    environ = os.environ | {"BROWSER": f"{browser} %s"}
    with subprocess.Popen([*TM, "ui"], stdout=subprocess.PIPE, text=True, env=environ, start_new_session=True) as pages:
        try:
            assert pages.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:(\d+)/\S*code=(\S+)", pages.stdout.readline())
            assert address is not None
            until(lambda: "trains" in run.logs("worker:0"), what=lambda: str([*run.logs()]))
            ours = [pages.pid, *(mark.process.pid for mark in processes.living(run.id))]
            names = {name for pid in ours for name, port in listening.places(pid) if not port}
            token = (place / "state" / "jobs" / run.id / "token").read_text()
            new = [Path("/tmp", entry) for entry in set(os.listdir("/tmp")) - before]
            secrets = [token, SECRET, address[2]]
            found = as_another_user(lambda: attack(place, new, names, ours, secrets, int(address[1])))
        finally:
            os.killpg(pages.pid, signal.SIGKILL)
    go.touch()
    run.wait()
    until(lambda: not processes.living(run.id))
    assert names
    assert found == {"read": [], "entered": [], "seen": [], "signalled": [], "shown": [False, False]}


def attack(
    place: Path, new: list[Path], sockets: set[str], ours: list[int], secrets: list[str], port: int
) -> dict[str, Any]:
    """Return what another user can read, where it gets in, what it sees of others' processes, and what pages show it."""
    read, entered, seen, signalled = [], [], [], []
    for root in (place / "state", place / "run", Path("/dev/shm"), *new):
        for folder, _, files in os.walk(root):
            for file in files:
                with contextlib.suppress(OSError), open(os.path.join(folder, file), "rb") as opened:
                    content = opened.read()
                    if root.parent == place or any(secret.encode() in content for secret in secrets):
                        read.append(os.path.join(folder, file))
    for name in sockets:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as client:
                client.connect(name.replace("@", "\0"))
                entered.append(name)
    for entry in os.listdir("/proc"):
        for file in ("cmdline", "environ", "maps") if entry.isdigit() else ():
            with contextlib.suppress(OSError):
                content = Path("/proc", entry, file).read_bytes()
                seen += [f"{entry} {file}: {secret}" for secret in secrets if secret.encode() in content]
    seen += [secret for secret in secrets if secret in Path("/proc/net/unix").read_text(errors="replace")]
    for pid in ours:
        with contextlib.suppress(PermissionError):
            os.kill(pid, 0)
            signalled.append(pid)
    shown = []
    for path in ("/", "/?code=000000"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        shown.append(b"private-" in connection.getresponse().read())
        connection.close()
    return {"read": read, "entered": entered, "seen": seen, "signalled": signalled, "shown": shown}


def test_a_runtime_directory_of_another_user_is_refused(place: Path) -> None:
    """Whoever made it first could put sockets of its own there."""
    os.chmod(place, 0o777)
    as_another_user(lambda: os.mkdir(place / "run", 0o777))
    done = subprocess.run(
        [*TM, "run", "--", "true"], capture_output=True, text=True, cwd=place, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    assert str(place / "run") in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("home")
def test_an_open_cluster_is_not_started_where_others_have_processes() -> None:
    need_root()
    with subprocess.Popen(["sleep", "600"], user=4321, group=4321, extra_groups=[], cwd="/") as other:
        try:
            up = subprocess.run(
                [*TM, "cluster", "up", "hadoop", "--name", "open"],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        finally:
            other.kill()
    assert (up.returncode, up.stdout) == (2, "")
    assert "4321" in up.stderr.splitlines()[0]
    assert "could run programs as you" in up.stderr
    assert "--kerberos" in up.stderr
