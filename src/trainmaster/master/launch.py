"""Starting a master on this machine, detached from whoever starts it.

`tm` forks it out of itself, which costs a millisecond, and may do so only while it has no thread and no event loop. Inside somebody's
Python (`trainmaster.submit()`) a fork would copy threads and locks of unknown kinds, so there a fresh interpreter is started.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any

_prepared: socket.socket | None = None  # to the process that waits to become a master

COMMAND = [sys.executable, "-I", "-m", "trainmaster.master"]


def launch(storage: str, told: Mapping[str, Any], *, fork: bool) -> None:
    """Start the master of the job whose storage is the directory `storage`.

    `told` is what is kept in no file: token, secrets, environ, allowance, cwd.
    """
    if fork and threading.active_count() == 1:
        _hand_over(storage, told)
    else:
        _spawn(storage, told)


def resume(job: str) -> bool:
    """Start a master for a job that lost all its processes; whether its storage was there. What nobody kept of it is gone."""
    from trainmaster.engines.local.places import job_storage

    storage = job_storage(job)
    try:
        token = (storage / "token").read_text().strip()
    except OSError:
        return False
    _spawn(str(storage), {"token": token, "secrets": None, "environ": dict(os.environ)})
    return True


def prepare() -> None:
    """Fork the process that will be the master, ahead of the job: it imports what a master needs while the job is read and checked.

    Called first thing by a command that submits. Without a job, it ends with us. What both of us need is imported before, once.
    """
    global _prepared
    import trainmaster.core.reading
    import trainmaster.core.state  # noqa: F401

    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        theirs.close()
        os.waitpid(child, 0)  # the one between, which ends at once
        _prepared = ours
        return
    status = 1
    try:
        os.setsid()
        ours.close()
        if os.fork():
            status = 0
        else:
            status = _become(theirs)
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _hand_over(storage: str, told: Mapping[str, Any]) -> None:
    """Give the prepared process its job."""
    global _prepared
    if _prepared is None:
        prepare()
    assert _prepared is not None
    with _prepared:
        _prepared.sendall(json.dumps([storage, told]).encode())
    _prepared = None


def _become(link: socket.socket) -> int:
    """The forked master's whole life."""
    from trainmaster.master import main

    agents = main.agents()
    main.warm()
    content = b""
    with link:
        while piece := link.recv(1 << 20):
            content += piece
    if not content:
        return 0
    storage, told = json.loads(content)
    main.detach(storage, agents)
    return main.run(storage, told, agents)


def _spawn(storage: str, told: Mapping[str, Any]) -> None:
    """A fresh interpreter, started by one between, so that it is nobody's child here."""
    import subprocess

    process = subprocess.Popen(
        [*COMMAND, "--detach", storage], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True, cwd="/",
    )  # fmt: skip
    _, errors = process.communicate(json.dumps(told).encode())
    if process.returncode:
        from trainmaster.core.errors import EngineFailed

        why = errors.decode(errors="replace").strip()[-500:]
        raise EngineFailed(f"the master could not be started: {why}", anchor="master-not-started")
