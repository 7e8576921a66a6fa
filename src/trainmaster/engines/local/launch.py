"""Starting a master on this machine, detached from whoever starts it.

`tm` forks it out of itself, which costs a millisecond, and may do so only while it has no thread and no event loop. Inside somebody's
Python (`trainmaster.submit()`) a fork would copy threads and locks of unknown kinds, so there a fresh interpreter is started.

Whoever starts a master marks its process as the job's, and notes that the job has begun, before the job is handed over. So everybody sees
from its first millisecond on whether it lives, and a command that watches takes the job up again where it does not.

A job that lost all its processes is resumed by whoever types the next command, and its programs find what their submitter had: the
environment, as it was activated, and the allowance are kept in the job's private directory until the job ends. Secret variables
(`core.spec.redaction`) are not; they are as they are set when the job is resumed. Of a job with secrets of its own nothing is kept, for it
cannot go on.
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
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from trainmaster.engines.local import template
from trainmaster.engines.local.template import Link
from trainmaster.host import places, processes
from trainmaster.host.detached import start_master
from trainmaster.host.places import check_owner, job_storage

AGENT = "trainmaster.agent.forked:run"  # by their names: no engine imports the agent or the master
MASTER = "trainmaster.master.main"
_KEPT = "environ.json"

_prepared: tuple[socket.socket, int] | None = None  # to the process that waits to become a master, and its id


def launch(storage: str, told: Mapping[str, Any], *, fork: bool) -> None:
    """Start the master of the job whose storage is the directory `storage`.

    `told` is what `job.json` and `site.json` do not say: token, secrets, environ, allowance.
    """
    if fork and threading.active_count() == 1:
        _hand_over(storage, told)
    else:
        start_master(storage, told)


def keep(storage: Path, environ: Mapping[str, str], allowance: Mapping[str, Any]) -> None:
    """Write down what a resumed job needs of its submitter; of secret variables the name alone."""
    from trainmaster.core.spec.redaction import is_secret

    left_out = [name for name, value in environ.items() if is_secret(name, value)]
    told = {name: value for name, value in environ.items() if name not in left_out}
    with open(os.open(storage / _KEPT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"environ": told, "left_out": left_out, "allowance": dict(allowance)}, file)


def forget(storage: Path) -> None:
    """Remove what `keep` wrote: the job has ended, and nobody resumes it."""
    (storage / _KEPT).unlink(missing_ok=True)


def resume(job: str, kill: Mapping[str, str] | None = None) -> bool:
    """Start a master for a job that lost all its processes; whether its storage was there. `kill`: it ends the job, starting nothing.

    Raises BadInput where another user may have made the job.
    """
    storage = job_storage(job)
    try:
        check_owner(job)
        token = (storage / "token").read_text().strip()
    except OSError:
        return False
    start_master(str(storage), {"token": token, "secrets": None, "kill": kill, **_kept(storage)})
    return True


def _kept(storage: Path) -> dict[str, Any]:
    """What `keep` wrote, completed by what is set now; nothing where the job has secrets."""
    try:
        kept = json.loads((storage / _KEPT).read_bytes())
    except FileNotFoundError:
        return {}
    now = {name: os.environ[name] for name in kept["left_out"] if name in os.environ}
    without = [name for name in kept["left_out"] if name not in now]
    return {"environ": kept["environ"] | now, "allowance": kept["allowance"], "without": without}


def prepare() -> None:
    """Fork what a job will need, ahead of it: the template of its agents, then the process that will be its master.

    Called first thing by a command that submits. Each imports what it needs on the other cores meanwhile; what the command and the master
    both need is imported here between the two forks, once. Without a job, they end with us.
    """
    global _prepared
    template = agents()
    _load_what_both_need()
    ours, theirs = socket.socketpair()
    with _forking() as mask:
        child = os.fork()
        if not child:
            ours.close()
            _leave(theirs, template, mask)
    theirs.close()
    template.socket.close()  # so that the template sees the master's death
    os.waitpid(child, 0)  # the one between, which ends at once
    _prepared = ours, int(ours.recv(16) or 0)


def agents() -> Link:
    """Fork the template of the job's agents, which imports what they need while we do. Called before there is any thread or loop."""
    with _forking() as mask:

        def agent() -> template.Run:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return template.entry(AGENT)

        return template.fork(agent)


@contextmanager
def _forking() -> Iterator[set[int]]:
    """Ctrl-C is for the command, not for what it forks, which takes the signal mask that this yields once it cannot hear it."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _load_what_both_need() -> None:
    """Import what the check of a job, the reading of its log and its master need alike."""
    for name in _NEEDED_BY_BOTH:
        import_module(name)


_NEEDED_BY_BOTH = (
    "trainmaster.core.fold.changes", "trainmaster.core.decide.plan", "trainmaster.core.spec.reading", "trainmaster.core.machine.report",
    "trainmaster.engines.local.client", "trainmaster.engines.local.queue", "trainmaster.frameworks", "trainmaster.log.reader",
    "trainmaster.master.orders",
)  # fmt: skip


def _leave(link: socket.socket, template: Link, mask: Iterable[int]) -> NoReturn:
    """Become a master, nobody's child."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if master := os.fork():
            link.sendall(str(master).encode())
            status = 0
        else:
            status = _become(link, template)
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
    (link, master), _prepared = _prepared, None
    mark(storage, master)
    begin(storage)
    try:
        with link:
            link.sendall(json.dumps([storage, told]).encode())
    except ConnectionError:  # it is dead by now
        start_master(storage, told)


def mark(storage: str, master: int) -> None:
    """Note the process `master` as the job's master."""
    processes.mark(Path(storage).name, processes.MASTER, "", 0, master)


def _become(link: socket.socket, template: Link) -> int:
    """The forked master's whole life."""
    main = import_module(MASTER)
    main.warm()
    content = b""
    with link:
        while piece := link.recv(1 << 20):
            content += piece
    if not content:
        return 0
    storage, told = json.loads(content)
    main.detach(storage, template)
    status: int = main.here(storage, told, template)
    return status


def begin(storage: str) -> None:
    """Note that this machine has begun the job."""
    places.set_live(Path(storage).name, True)
