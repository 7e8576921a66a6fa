"""What a user does to a job: end it, save its outputs."""

from __future__ import annotations

import getpass
import time
from typing import Any

from trainmaster.client.jobs.backends import backend_of
from trainmaster.client.jobs.past import Facts, Past
from trainmaster.client.jobs.sweep import resume
from trainmaster.client.watch.connect import live
from trainmaster.client.watch.disconnected import Disconnected
from trainmaster.client.watch.follow import follow
from trainmaster.core.errors import BadInput, EngineFailed, NotFound

FOUND = 35.0  # s within which a master is back: its agents' grace, and a little


def kill(job: str, why: str = "", force: bool = False) -> Facts | None:
    """Ask for the end. Returns the final status where the job has ended already, else None.

    `force`: its processes are ended first, whatever its master says; a new one then ends the job, and starts nothing of it. So is a job
    that still waits on a cluster for its first master, for there is none to be asked.
    """
    by, where = f"user {getpass.getuser()}", backend_of(job)
    if (force or where.is_unbegun(job)) and _final(job) is None:
        where.end(job, by, why)
        return None
    return ask(job, "kill", by=by, why=why)[0]


def save(job: str) -> str:
    """Begin a save; returns its name."""
    ended, answer = ask(job, "save")
    if ended is not None:
        raise BadInput(
            f"{job} has ended: {ended['state']}", mend="its outputs are where they were committed", anchor="job-ended"
        )
    return str(answer["save"])


def saved(job: str, name: str) -> dict[str, Any]:
    """Wait until the save is done; returns figures by task. A task that ends before it saves is left out."""
    told: dict[str, Any] = {}
    begun = False
    for item in follow(job, resume=resume):
        status = item.get("status") or item.get("end")
        if status is None:
            continue
        found = next((save for save in status["saves"] if save["save"] == name), None)
        if found is not None:
            begun, told = True, {**found["tasks"], **found["failed"]}
        # Old ones go: one that is not there any more is done.
        if "end" in item or (begun and not (found and found["left"])):
            break
    return told


def ask(job: str, verb: str, **fields: Any) -> tuple[Facts | None, Facts]:
    """(final status or None, the master's answer). Waits for a master while the job has none."""
    limit = time.monotonic() + FOUND
    resumed = False
    while time.monotonic() < limit:
        master = live(job)
        if master is not None:
            try:
                return None, master.act(verb, **fields)
            except Disconnected:  # it went away; its successor is asked
                pass
        if (ended := _final(job)) is not None:
            return ended, {}
        if not resumed:
            resumed = True
            resume(job)
        time.sleep(0.1)
    raise EngineFailed(
        f"no master of {job} answers", mend=f"see what became of it: tm status {job}", anchor="master-gone"
    )


def _final(job: str) -> Facts | None:
    past = Past(job)
    try:
        return past.status() if past.state().ended is not None else None
    except NotFound:  # its master has not begun to write
        return None
