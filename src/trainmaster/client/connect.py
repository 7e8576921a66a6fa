"""What the client knows of one job: from its master while that lives, from the event log always.

`live` gives the master, over its Unix socket; `Past` folds the log, which is the job, and so works when the master is gone, between two
masters, and years after the end. Both give the same facts in the same form.
"""

from __future__ import annotations

import functools
import json
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainmaster.client.places import JOB_FILE, TOKEN_FILE, engine_of, job_storage, master_socket
from trainmaster.core.errors import BadInput, EngineFailed, NotFound

if TYPE_CHECKING:
    from trainmaster.client.live import Live
    from trainmaster.core.job import Job
    from trainmaster.log.output import Printed
    from trainmaster.log.storage import Storage

CONNECT = 5.0  # s that a living master has for accepting a connection
BEGIN = 30.0  # s that a master has, on a busy machine, from its job being submitted to its first event
UPLOADED = 330.0  # s that a submission to a cluster may take, where no lock tells whether it goes on

ENDING = "it has not written its end, which is done now: its processes were ended"

Facts = dict[str, Any]


class Disconnected(EngineFailed):
    """The master was there and is not any more."""


def live(job: str) -> Live | None:
    """The job's master, or None where none answers."""
    try:
        token = (job_storage(job) / TOKEN_FILE).read_text().strip()
        if not token:  # found on its cluster when it was over, and its token with it
            return None
        if engine_of(job) == "local":
            connect = functools.partial(unix, str(master_socket(job)))
        else:
            from trainmaster.client.distant import connection

            connect = functools.partial(connection, job, token)
        connect().close()
    except OSError:  # no socket, nobody behind it, or no token: nothing to ask
        return None
    from trainmaster.client.live import Live  # http.client takes its time, and a short job is over before

    return Live(job, connect, token)


def unix(path: str) -> socket.socket:
    """A connection to a Unix socket."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.settimeout(CONNECT)
        opened.connect(path)
    except BaseException:
        opened.close()
        raise
    return opened


class Past:
    """A job by its storage."""

    def __init__(self, job: str) -> None:
        from trainmaster.log.storage import LocalStorage, place_of, storage_for

        self.job = job
        self.storage = storage_for(place_of(job_storage(job)))
        self.directory: Storage = LocalStorage(job_storage(job))

    def state(self) -> Any:
        """The folded state. Raises NotFound where the log has not begun."""
        from trainmaster.log.replay import replayed

        state, _ = replayed(self.storage)
        if state.job is None:
            raise NotFound(
                f"{self.job} has no events yet: it was prepared, and its master never wrote",
                place=str(job_storage(self.job)),
                mend=f"submit it again: tm retry {self.job}",
                anchor="no-events",
            )
        return state

    def status(self) -> Facts:
        from trainmaster.core.report import status

        return status(self.state())

    def events(self, after: int = 0) -> Iterator[Facts]:
        from trainmaster.core.events import decode
        from trainmaster.log.reader import Reader, replay

        def known(line: bytes) -> Facts:
            decode(line)  # refuses what another major version wrote
            record: Facts = json.loads(line)
            return record

        yield from replay(Reader(self.storage, after), known)

    def log(self, task: str, attempt: int | None = None, offset: int = 0, growing: bool = False) -> Iterator[Facts]:
        """Pieces {task, attempt, offset, next, data} of what is there of a task's output, of its latest attempt where None."""
        number = attempt or max(self.attempts(task), default=1)
        for piece in self._printed(task, number).pieces(offset, growing):
            yield {"task": task, "attempt": number, **piece}

    def size(self, task: str, attempt: int) -> int:
        """Bytes that an attempt has printed."""
        return self._printed(task, attempt).size

    def printed(self) -> list[str]:
        """The tasks of the log whose output is there, in order."""
        from trainmaster.log.output import folder, folders

        there = folders(self.storage, self.directory)
        return [task for task in self.tasks() if folder(task) in there]

    def attempts(self, task: str) -> list[int]:
        """The attempts whose output is there, in order."""
        from trainmaster.log.output import attempts

        return attempts(self.storage, self.directory, task)

    def tasks(self) -> list[str]:
        """The tasks that the job has at most; known before its log begins."""
        return task_names(self.described)

    def _printed(self, task: str, attempt: int) -> Printed:
        from trainmaster.log.output import Printed

        return Printed(self.storage, self.directory, task, attempt, self.described.logs)

    @functools.cached_property
    def described(self) -> Job:
        """The job as it was submitted."""
        from trainmaster.core.reading import job_from

        return job_from(json.loads((job_storage(self.job) / JOB_FILE).read_bytes()))


def task_names(job: Job) -> list[str]:
    """The tasks that a job has at most."""
    return [f"{role.name}:{index}" for role in job.roles.values() for index in range(role.replicas.max)]


def copied_tasks(job: Job) -> list[str]:
    """The tasks of a job that run several copies of their program."""
    from trainmaster.core.ranks import copies

    roles = [role for role in job.roles.values() if copies(role.processes, role.resources.gpus) > 1]
    return [f"{role.name}:{index}" for role in roles for index in range(role.replicas.max)]


def status(job: str) -> Facts:
    """The job's status, from whoever knows it; of one that was just submitted, as soon as there is one."""
    while True:
        try:
            master = live(job)
            status = _stored_status(job) if master is None else master.status()
            note_end(job, status)
            return status
        except Disconnected:  # it ended meanwhile, and the log knows; or it stands still
            return _stored_status(job, silent=live(job) is not None)
        except NotFound:  # it has not begun
            if engine_of(job) != "local":
                from trainmaster.client.distant import before

                return before(job)
            if not beginning(job) and live(job) is None:
                raise
            time.sleep(0.02)
        except BadInput as refusal:  # who may not ask a job's master may be allowed to read its log
            if refusal.anchor != "rights":
                raise
            return _stored_status(job, refusal=refusal.message)


def note_end(job: str, status: Facts) -> None:
    """Keep how a job ended on this machine, for lists made while the job's storage cannot be read."""
    if status.get("ended") is not None:
        from trainmaster.log.index import note_end

        note_end(str(job_storage(job)), status)


def _stored_status(job: str, silent: bool = False, refusal: str = "") -> Facts:
    """What the log says; and where nobody goes on writing it before it has ended, that. `silent`: its master is there. `refusal`: why it
    may not be asked.
    """
    from trainmaster.client.sweep import abandoned
    from trainmaster.core.report import status

    state = Past(job).state()
    found = status(state)
    if state.ended is None and refusal:
        found["waiting"] = f"this is what its log says, for its master may not be asked: {refusal}"
    elif state.ended is None and silent:
        found["waiting"] = f"its master does not answer; it is ended by force with tm kill --force {job}"
    elif state.ended is None and engine_of(job) != "local":
        from trainmaster.client.distant import conclude, waits

        found["waiting"] = f"{ENDING} by its cluster" if conclude(job) else waits(job)
    elif state.ended is None and abandoned(job):
        found["waiting"] = f"no process of it is left, and it has not ended; submit it again: tm retry {job}"
    return found


def beginning(job: str, within: float = BEGIN) -> bool:
    """Whether the job was submitted so lately that its master may not have begun, and that is not known to be dead."""
    try:
        lately = time.time() - (job_storage(job) / TOKEN_FILE).stat().st_mtime < within
    except FileNotFoundError:
        return False
    return lately and not _died(job)


def _died(job: str) -> bool:
    """Return True where all processes that were marked as this job's on this machine are dead."""
    from trainmaster.engines.local import processes

    marks = processes.marks(job)
    return bool(marks) and not any(mark.process.alive for mark in marks)


def submitting(job: str) -> bool:
    """Whether the job's submitter lives, and is not done: until then it has locked the job's token."""
    import fcntl

    try:
        with open(job_storage(job) / TOKEN_FILE) as token:
            fcntl.flock(token, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:  # a file system without locks
        return beginning(job, UPLOADED)
    return False
