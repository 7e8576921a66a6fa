"""What the next command does about jobs whose processes died: cheap where there is nothing to do.

A job of which no process lives gives back what it held: its ledger entries, processes, control groups, sockets and lock files. If this
node had begun it and not finished it, it is *resumable*: a new master can go on from its log. Where a template or a program alone is left
(its agent and master being dead) it is ended too. Live jobs are not touched: their own masters look after them.
"""

from __future__ import annotations

import os

from trainmaster.host import places, processes


def sweep() -> list[str]:
    """Clear away what dead jobs left on this machine; returns the ids of those that are resumable."""
    runtime = places.runtime_dir()
    with os.scandir(runtime) as found:
        jobs = [entry.name for entry in found if entry.is_dir(follow_symlinks=False) and entry.name != "ports"]
    dead = [job for job in jobs if _dead(job)]
    if dead:
        with places.locked():  # so that no master begins in a folder that is being removed
            for job in dead:
                if _dead(job):
                    _clear(job)
        _free(dead)
        from trainmaster.host.ports import remove_unheld

        remove_unheld()
    _remove_other_boots()
    return [job for job in places.live_jobs() if not processes.living(job, processes.MASTER, processes.AGENT)]


def _dead(job: str) -> bool:
    """Whether neither master nor agent of the job lives, and it is not just beginning."""
    known = processes.marks(job)
    if not known:
        return places.abandoned(places.runtime_dir() / job)
    return not any(made.process.alive for made in known if made.kind in (processes.MASTER, processes.AGENT))


def _clear(job: str) -> None:
    from trainmaster.host.limits import remove_groups

    remove_groups(job)
    kinds = (processes.PROGRAM, processes.TEMPLATE, processes.AGENT)
    processes.end([made.process for made in processes.marks(job) if made.kind in kinds])
    places.remove_job_dir(job)


def _free(dead: list[str]) -> None:
    """Strike the dead out of the ledger, and have somebody who waits look at the line."""
    from trainmaster.engines.local.engine import wake
    from trainmaster.engines.local.ledger import FILE, Ledger

    if not (places.runtime_dir() / FILE).exists():
        return
    ledger = Ledger()
    try:
        for job in dead:
            ledger.forget(job)
        wake(ledger.waiters())
    finally:
        ledger.close()


def _remove_other_boots() -> None:
    """Folders of other boots: nothing of them can live. Those of this boot in another process-id namespace are left alone."""
    runtime = places.runtime_dir()
    boot = runtime.name.partition("-")[0]
    for name in os.listdir(runtime.parent):
        if name == runtime.name:
            continue
        if places.is_boot_key(name) and not name.startswith(f"{boot}-"):
            import shutil

            shutil.rmtree(runtime.parent / name, ignore_errors=True)
