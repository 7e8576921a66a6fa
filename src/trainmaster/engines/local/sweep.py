"""The sweep clears away jobs whose processes died, at the next command; it is cheap where there is nothing to do.

A job whose master and agents are dead gives back what it held: its ledger entries, processes, control groups, sockets and lock files. If
this node began the job and did not finish it, the job is *resumable*: a new master can go on from its log. A template or a program that is
left without its agent and master is ended too. Live jobs are not touched: their own masters look after them.
"""

from __future__ import annotations

import contextlib
import os

from trainmaster.host import places, processes
from trainmaster.log.storage import Damaged


def sweep() -> list[str]:
    """Clear away what dead jobs left on this machine; return the ids of the resumable ones."""
    dead = [job for job in places.jobs_with_dir() if _is_dead(job)]
    if dead:
        with places.locked():  # so that no master begins in a folder that is being removed
            for job in dead:
                if _is_dead(job):
                    _clear(job)
        _free(dead)
        from trainmaster.host.ports import remove_unheld

        remove_unheld()
    _remove_other_boots()
    return [job for job in places.live_jobs() if not processes.living(job, processes.MASTER, processes.AGENT)]


def _is_dead(job: str) -> bool:
    """Return True where neither master nor agent of the job lives, and the job is not just beginning."""
    marks = processes.marks(job)
    if not marks:
        return places.abandoned(places.runtime_dir() / job)
    return not any(mark.process.alive for mark in marks if mark.kind in (processes.MASTER, processes.AGENT))


def _clear(job: str) -> None:
    from trainmaster.host.limits import remove_groups

    remove_groups(job)
    kinds = (processes.PROGRAM, processes.TEMPLATE, processes.AGENT)
    processes.end([mark.process for mark in processes.marks(job) if mark.kind in kinds])
    places.remove_job_dir(job)


def _free(dead: list[str]) -> None:
    """Strike dead jobs out of the ledger, and wake the masters that wait in line."""
    from trainmaster.engines.local.engine import wake
    from trainmaster.engines.local.ledger import FILE, Ledger

    path = places.runtime_dir() / FILE
    if not path.exists():
        return
    ledger = Ledger(path)
    try:
        with contextlib.suppress(Damaged):  # whoever waits says so; it is made anew without the dead
            for job in dead:
                ledger.forget(job)
            wake(ledger.waiters())
    finally:
        ledger.close()


def _remove_other_boots() -> None:
    """Remove the folders of other boots, whose processes cannot live. Folders of this boot in another process-id namespace stay."""
    runtime = places.runtime_dir()
    boot = runtime.name.partition("-")[0]
    for name in os.listdir(runtime.parent):
        if name == runtime.name:
            continue
        if places.is_boot_key(name) and not name.startswith(f"{boot}-"):
            import shutil

            shutil.rmtree(runtime.parent / name, ignore_errors=True)
