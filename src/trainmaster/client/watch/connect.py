"""The client learns of a job from its master while that lives, and from the event log always.

`live` gives the master, over its Unix socket; `Past` folds the log, which is the job, and so works when the master is gone, between two
masters, and years after the end. Both give the same facts in the same form.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from trainmaster.client.jobs.backends import backend_of
from trainmaster.client.jobs.past import Facts, Past
from trainmaster.client.jobs.places import beginning, job_storage
from trainmaster.client.watch.disconnected import Disconnected
from trainmaster.core.errors import BadInput, NotFound
from trainmaster.log.documents.jobs import check_token, read_token
from trainmaster.log.storage import Damaged

if TYPE_CHECKING:
    from trainmaster.client.watch.live import Live


def live(job: str) -> Live | None:
    """Return the job's master, or None where none answers."""
    try:
        token = read_token(job_storage(job))
        where = backend_of(job)
        if (
            not token and not where.on_this_machine
        ):  # the job was found on its cluster when it was over, and has no token
            return None
        connect = functools.partial(where.connect, job, token)
        connect().close()
        check_token(job_storage(job), token)
    except Damaged:  # a master answers, and will not know us
        raise
    except OSError:  # no socket, a socket that nobody serves, or no token: nothing to ask
        return None
    from trainmaster.client.watch.live import Live  # http.client takes its time, and a short job is over before

    return Live(job, connect, token)


def status(job: str) -> Facts:
    """Return the job's status, from its master or its log; of a job that was just submitted, as soon as there is one."""
    while True:
        try:
            master = live(job)
            status = _stored_status(job) if master is None else master.status()
            note_end(job, status)
            return status
        except Disconnected:  # the master ended meanwhile, and the log knows; or it stands still
            return _stored_status(job, silent=live(job) is not None)
        except NotFound:  # the log has not begun
            if (before := backend_of(job).status_before(job)) is not None:
                return before
            if not beginning(job) and live(job) is None:
                raise
            time.sleep(0.02)
        except BadInput as refusal:  # a user who may not ask a job's master may be allowed to read its log
            if refusal.anchor != "rights":
                raise
            return _stored_status(job, refusal=refusal.message)


def note_end(job: str, status: Facts) -> None:
    """Keep how a job ended on this machine, for lists made while the job's storage cannot be read."""
    if status.get("ended") is not None:
        from trainmaster.log.index import note_end

        note_end(str(job_storage(job)), status)


def _stored_status(job: str, silent: bool = False, refusal: str = "") -> Facts:
    """Return what the log says; where the job has not ended and nobody goes on writing the log, `waiting` says so. `silent`: the master is
    there. `refusal`: why the master may not be asked.
    """
    from trainmaster.core.machine.report import status

    state = Past(job).state()
    report = status(state)
    if state.ended is None and refusal:
        report["waiting"] = f"this is what its log says, for its master may not be asked: {refusal}"
    elif state.ended is None and silent:
        report["waiting"] = f"its master does not answer; it is ended by force with tm kill --force {job}"
    elif state.ended is None and (waiting := backend_of(job).standstill(job)) is not None:
        report["waiting"] = waiting
    return report
