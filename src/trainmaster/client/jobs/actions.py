"""Act on a job for its user: end it, save its outputs, signal its programs, submit it again."""

from __future__ import annotations

import time
from typing import Any

from trainmaster.client.jobs.backends import backend_of
from trainmaster.client.jobs.past import Facts, Past, check_is_there
from trainmaster.client.jobs.places import beginning
from trainmaster.client.jobs.sweep import resume
from trainmaster.client.watch.connect import live
from trainmaster.client.watch.disconnected import Disconnected
from trainmaster.client.watch.follow import follow, no_process_left
from trainmaster.core.errors import BadInput, EngineFailed, NotFound
from trainmaster.core.spec.signals import signal_number
from trainmaster.host.machine import user_name
from trainmaster.log.storage import Damaged

MASTER_BACK = 35.0  # s within which a master is back: its agents' grace, and a little


def kill(job: str, why: str = "", force: bool = False) -> Facts | None:
    """Ask for the end. Returns the final status where the job has ended already, else None.

    `force`: end its processes first, whatever its master says; a new master then ends the job, and starts nothing of it. A job that still
    waits on a cluster for its first master is ended in the same way: there is no master to be asked.
    """
    by, where = f"user {user_name()}", backend_of(job)
    if (force or where.is_unbegun(job)) and not _is_over(job):
        where.end(job, by, why)
        return None
    return ask(job, "kill", by=by, why=why)[0]


def kill_task(job: str, task: str, why: str = "") -> None:
    """End the present attempt of a task; it restarts by the rules of its role."""
    _of_running(job, "kill", task=task, by=f"user {user_name()}", why=why)


def scale(job: str, role: str, size: int | None) -> None:
    """Have an elastic role grow or shrink to `size` members, which may take a while. None: as many as the job's own rules say, again."""
    _of_running(job, "scale", role=role, size=size, by=f"user {user_name()}")


def cut(job: str, task: str, seconds: float) -> None:
    """Have the link between the master and a task's agent silent for a while, as where a network is cut."""
    _of_running(job, "cut", task=task, seconds=seconds, by=f"user {user_name()}")


def signal(job: str, task: str, name: str) -> None:
    """Send a signal, like USR1, to the program of a task. Raises BadInput for an unknown one, and where the program does not run."""
    try:
        signal_number(name)
    except ValueError as error:
        raise BadInput(str(error), mend="see the names and numbers: kill -l", anchor="refused-request") from None
    _of_running(job, "signal", task=task, signal=name, by=f"user {user_name()}")


def dump(job: str, task: str) -> None:
    """Have the stacks of all processes of a task's program written to its log."""
    _of_running(job, "dump", task=task, by=f"user {user_name()}")


def retry(job: str) -> str:
    """Submit a job again, as it was, and return the new id: `resubmit` for processes with threads, from any of them. It forks nothing.

    The programs get this process's environment, and secrets their values in it. Raises BadInput where this cannot be done from here.
    """
    from trainmaster.client.submit.submit import resubmit

    return resubmit(job)


def _of_running(job: str, verb: str, **fields: Any) -> None:
    ended, _ = ask(job, verb, **fields)
    if ended is not None:
        raise BadInput(
            f"{job} has ended: {ended['state']}", mend=f"submit it again: tm retry {job}", anchor="job-ended"
        )


def save(job: str) -> str:
    """Begin a save; returns its name."""
    ended, answer = ask(job, "save", by=f"user {user_name()}")
    if ended is not None:
        raise BadInput(
            f"{job} has ended: {ended['state']}", mend="its outputs are where they were committed", anchor="job-ended"
        )
    return str(answer["save"])


def saved(job: str, name: str) -> dict[str, Any]:
    """Wait until the save is done; returns figures by task. A task that ends before it saves is left out."""
    figures: dict[str, Any] = {}
    begun = False
    for item in follow(job, resume=resume):
        status = item.get("status") or item.get("end")
        if status is None:
            continue
        entry = next((save for save in status["saves"] if save["save"] == name), None)
        if entry is not None:
            begun, figures = True, {**entry["tasks"], **entry["failed"]}
        # Old saves are removed: one that is no longer listed is done.
        if "end" in item or (begun and not (entry and entry["left"])):
            break
    return figures


def ask(job: str, verb: str, **fields: Any) -> tuple[Facts | None, Facts]:
    """Return (final status or None, the master's answer). Wait for a master while the job has none."""
    limit = time.monotonic() + MASTER_BACK
    resumed = False
    while time.monotonic() < limit:
        check_is_there(job)
        master = live(job)
        if master is not None:
            try:
                return None, master.act(verb, **fields)
            except Disconnected:  # the master went away; its successor is asked
                pass
        if (ended := _final(job)) is not None:
            return ended, {}
        if not resumed:
            resumed = True
            if not resume(job) and _is_deserted(job):
                raise no_process_left(job)
        time.sleep(0.1)
    raise EngineFailed(
        f"no master of {job} answers", mend=f"see what became of it: tm status {job}", anchor="master-gone"
    )


def _is_deserted(job: str) -> bool:
    """Tell whether nothing of a job of this machine lives, and nothing of it is about to begin."""
    where = backend_of(job)
    return where.on_this_machine and not beginning(job) and where.is_abandoned(job)


def _is_over(job: str) -> bool:
    """Tell whether the job is known to have ended; by a damaged log it is not, and whoever ends it by force ends its processes."""
    try:
        return _final(job) is not None
    except Damaged:
        return False


def _final(job: str) -> Facts | None:
    past = Past(job)
    try:
        return past.status() if past.state().ended is not None else None
    except NotFound:  # its master has not begun to write
        return None
