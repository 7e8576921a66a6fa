"""What the client knows of one job: from its master while that lives, from the event log always.

`live` gives the master, over its Unix socket; `Past` folds the log, which is the job, and so works when the master is gone, between two
masters, and years after the end. Both give the same facts in the same form.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainmaster.client.places import JOB_FILE, TOKEN_FILE, job_storage, master_socket
from trainmaster.core.errors import EngineFailed, NotFound

if TYPE_CHECKING:
    from trainmaster.client.live import Live

CONNECT = 5.0  # s that a living master has for accepting a connection
BEGIN = 30.0  # s that a master has, on a busy machine, from its job being submitted to its first event
PIECE = 64 * 1024  # bytes of output in one piece

Facts = dict[str, Any]


class Disconnected(EngineFailed):
    """The master was there and is not any more."""


def live(job: str) -> Live | None:
    """The job's master, or None where none answers."""
    path = master_socket(job)
    try:
        token = (job_storage(job) / TOKEN_FILE).read_text().strip()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(CONNECT)
            probe.connect(str(path))
    except OSError:  # no socket, nobody behind it, or no token: nothing to ask
        return None
    from trainmaster.client.live import Live  # http.client takes its time, and a short job is over before

    return Live(job, path, token)


class Past:
    """A job by its storage."""

    def __init__(self, job: str) -> None:
        from trainmaster.log.storage import storage_for

        self.job = job
        self.storage = storage_for(_storage_place(job))

    def state(self) -> Any:
        """The folded state. Raises NotFound where the log has not begun."""
        from trainmaster.core.events import decode
        from trainmaster.core.fold import fold
        from trainmaster.core.state import State
        from trainmaster.log.reader import Reader, replay

        state = fold(State(), replay(Reader(self.storage), decode))
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

    def log(self, task: str, attempt: int | None = None, offset: int = 0) -> Iterator[Facts]:
        from trainmaster.log.pieces import whole_characters

        number = attempt or max(self.attempts(task), default=1)
        path = f"{_folder(task)}/{number}.log"
        while data := self.storage.read(path, offset, PIECE):
            data = whole_characters(data)
            following = offset + len(data)
            text = data.decode("utf-8", "replace")
            yield {"task": task, "attempt": number, "offset": offset, "next": following, "data": text}
            offset = following

    def attempts(self, task: str) -> dict[int, int]:
        """The attempts whose output is stored, in order, with its bytes."""
        sizes = {entry.name.removesuffix(".log"): entry.size for entry in self.storage.entries(_folder(task))}
        return {int(name): sizes[name] for name in sorted(filter(str.isdigit, sizes), key=int)}

    def tasks(self) -> list[str]:
        """The tasks that the job has at most; known before its log begins."""
        from trainmaster.core.reading import job_from

        job = job_from(json.loads((job_storage(self.job) / JOB_FILE).read_bytes()))
        return [f"{role.name}:{index}" for role in job.roles.values() for index in range(role.replicas.max)]


def _folder(task: str) -> str:
    return f"logs/{task.replace(':', '-')}"


def _storage_place(job: str) -> str:
    """Where the job's storage is: its directory here, or under the URL that `storage:` named."""
    directory = job_storage(job)
    try:
        elsewhere = json.loads((directory / JOB_FILE).read_bytes()).get("storage")
    except (OSError, ValueError):  # not written yet, or not ours: then it is the directory
        elsewhere = None
    return f"{str(elsewhere).rstrip('/')}/{job}" if elsewhere else str(directory)


def status(job: str) -> Facts:
    """The job's status, from whoever knows it; of one that was just submitted, as soon as there is one."""
    while True:
        try:
            master = live(job)
            return _stored_status(job) if master is None else master.status()
        except (Disconnected, NotFound):  # it ended meanwhile, and the log knows; or it has not begun
            if not beginning(job) and live(job) is None:
                return _stored_status(job)
            time.sleep(0.02)


def _stored_status(job: str) -> Facts:
    """What the log says; and where nobody goes on writing it before it has ended, that."""
    from trainmaster.client.sweep import abandoned
    from trainmaster.core.report import status

    state = Past(job).state()
    found = status(state)
    if state.ended is None and not beginning(job) and abandoned(job):
        found["waiting"] = f"no process of it is left, and it has not ended; submit it again: tm retry {job}"
    return found


def beginning(job: str) -> bool:
    """Whether the job was submitted so lately that its master may not have begun."""
    try:
        return time.time() - (job_storage(job) / TOKEN_FILE).stat().st_mtime < BEGIN
    except FileNotFoundError:
        return False
