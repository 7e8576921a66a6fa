"""Start a master on this machine, detached from the process that starts it.

`tm` forks the master, which costs a millisecond, and may do so only while it has no thread and no event loop. Inside a user's Python
(`trainmaster.submit()`) a fork would copy threads and locks of unknown kinds, so there a fresh interpreter is started.

The process that starts a master marks the master's process as the job's, and notes that the job has begun, before it hands the job over. So
everybody sees from its first millisecond on whether the master lives, and a command that watches resumes the job where it does not.

The next command resumes a job that lost all its processes. Its programs then find what their submitter had: the environment, as it was
activated, and the allowance are kept in the job's private directory until the job ends. Secret variables (`core.spec.redaction`) are not
kept; they have the values of the command that resumes the job. Nothing is kept of a job with secrets of its own, which cannot go on.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from trainmaster.engines.local import template
from trainmaster.engines.local.template import Link
from trainmaster.host import places, processes
from trainmaster.host.detached import start_master
from trainmaster.host.places import check_owner, job_storage
from trainmaster.log.documents import files as documents
from trainmaster.log.documents.jobs import check_token, check_whole, read_token
from trainmaster.log.storage import Damaged

AGENT = "trainmaster.agent.forked:run"  # names, since no engine imports the agent or the master
MASTER = "trainmaster.master.main"
_SAVED = "environ.json"

_prepared: tuple[socket.socket, int] | None = None  # the link to the process that waits to become a master, and its id


def launch(storage: str, payload: Mapping[str, Any], *, fork: bool) -> None:
    """Start the master of the job whose storage is the directory `storage`.

    `payload` has what `job.json` and `site.json` lack: token, secrets, environ, allowance.
    """
    if fork and threading.active_count() == 1:
        _hand_over(storage, payload)
    else:
        start_master(storage, payload)


def keep(storage: Path, environ: Mapping[str, str], allowance: Mapping[str, Any]) -> None:
    """Save what a resumed job needs of its submitter; of secret variables only the names."""
    from trainmaster.core.spec.redaction import is_secret

    left_out = [name for name, value in environ.items() if is_secret(name, value)]
    kept = {name: value for name, value in environ.items() if name not in left_out}
    documents.write(storage / _SAVED, {"environ": kept, "left_out": left_out, "allowance": dict(allowance)})


def forget(storage: Path) -> None:
    """Remove what `keep` wrote, once the job has ended and nobody resumes it."""
    (storage / _SAVED).unlink(missing_ok=True)


def resume(job: str, kill: Mapping[str, str] | None = None) -> bool:
    """Start a master for a job that lost all its processes; return False where its storage is gone.

    `kill`: the master ends the job, and starts nothing.

    Raises BadInput where another user may have made the job.
    """
    storage = job_storage(job)
    kill = kill or places.noted_kill(job)
    try:
        check_owner(job)
        token = read_token(storage)
        check_token(storage, token)
        check_whole(storage)
        saved = _read_saved(storage)
    except Damaged:
        if not kill:
            raise
        token, saved = (
            os.urandom(32).hex(),
            {},
        )  # no agent is left that knows the old one, and the end needs nothing else
    except OSError:
        return False
    if kill:
        places.note_kill(job, kill)
    start_master(str(storage), {"token": token, "secrets": None, "kill": kill, **saved})
    return True


def _read_saved(storage: Path) -> dict[str, Any]:
    """Return what `keep` wrote, with secret variables as they are set now; nothing where the job has secrets."""
    try:
        saved = documents.read(storage / _SAVED, f"submit the job again: tm retry {storage.name}")
    except FileNotFoundError:
        return {}
    secret = {name: os.environ[name] for name in saved["left_out"] if name in os.environ}
    missing = [name for name in saved["left_out"] if name not in secret]
    return {"environ": saved["environ"] | secret, "allowance": saved["allowance"], "without": missing}


def prepare() -> None:
    """Fork, before the job is read, the template of its agents, then the process that will be its master.

    A command that submits calls this first. Each process meanwhile imports what it needs, on another core. Modules that the command and the
    master both need are imported here between the two forks, once. Without a job both processes end with us.
    """
    global _prepared
    template = agents()
    _load_what_both_need()
    ours, theirs = socket.socketpair()
    with _forking() as mask:
        child = os.fork()
        if not child:
            ours.close()
            _fork_master(theirs, template, mask)
    theirs.close()
    template.socket.close()  # so that the template sees the master's death
    os.waitpid(child, 0)  # the process between us and the master, which ends at once
    _prepared = ours, int(ours.recv(16) or 0)


def agents() -> Link:
    """Fork the template of the job's agents, which imports what they need while we go on.

    Called before there is any thread or event loop.
    """
    with _forking() as mask:

        def agent() -> template.Run:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return template.entry(AGENT)

        return template.fork(agent)


@contextmanager
def _forking() -> Iterator[set[int]]:
    """Block Ctrl-C around a fork: it is for the command, not for its children.

    A child sets the signal mask that this yields, once Ctrl-C has no effect on it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _load_what_both_need() -> None:
    """Import the modules that the command, which checks a job and reads its log, and the job's master both need."""
    for name in _NEEDED_BY_BOTH:
        import_module(name)


_NEEDED_BY_BOTH = (
    "trainmaster.core.fold.changes", "trainmaster.core.decide.plan", "trainmaster.core.spec.reading", "trainmaster.core.machine.report",
    "trainmaster.engines.local.client", "trainmaster.engines.local.queue", "trainmaster.frameworks", "trainmaster.log.reader",
    "trainmaster.master.orders",
)  # fmt: skip


def _fork_master(link: socket.socket, template: Link, mask: Iterable[int]) -> NoReturn:
    """Fork the master, tell its process id over `link`, and end, so that the master is nobody's child."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if master := os.fork():
            with suppress(BrokenPipeError):  # the command was interrupted meanwhile, and the master ends with it
                link.sendall(str(master).encode())
            status = 0
        else:
            status = _serve_as_master(link, template)
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _hand_over(storage: str, payload: Mapping[str, Any]) -> None:
    """Give the prepared process its job."""
    global _prepared
    if _prepared is None:
        prepare()
    assert _prepared is not None
    (link, master), _prepared = _prepared, None
    mark(storage, master)
    begin(storage)
    try:
        with link:
            link.sendall(json.dumps([storage, payload]).encode())
    except ConnectionError:  # the process is dead by now
        start_master(storage, payload)


def mark(storage: str, master: int) -> None:
    """Note the process `master` as the job's master."""
    processes.mark(Path(storage).name, processes.MASTER, "", 0, master)


def _serve_as_master(link: socket.socket, template: Link) -> int:
    """Wait for a job and be its master; return the exit status."""
    main = import_module(MASTER)
    main.warm()
    content = b""
    try:
        with link:
            while piece := link.recv(1 << 20):
                content += piece
    except ConnectionError:  # the command has ended in the middle
        return 0
    if not content:
        return 0
    storage, payload = json.loads(content)
    main.detach(storage, template)
    status: int = main.run_locally(storage, payload, template)
    return status


def begin(storage: str) -> None:
    """Note that this machine has begun the job."""
    places.set_live(Path(storage).name, True)
