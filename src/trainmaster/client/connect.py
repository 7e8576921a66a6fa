"""What the client knows of one job: from its master while that lives, from the event log always.

`Live` asks the master over its Unix socket; `Past` folds the log, which is the job, and so works when the master is gone, between two
masters, and years after the end. Both give the same facts in the same form.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from trainmaster.client.places import JOB_FILE, TOKEN_FILE, job_storage, master_socket
from trainmaster.core.errors import EngineFailed, NotFound, TrainmasterError

PREFIX = "/api/v1"
CONNECT = 5.0  # s that a living master has for accepting a connection
ANSWER = 60.0  # s that it has for a single answer
BEGIN = 30.0  # s that a master has, on a busy machine, from its job being submitted to its first event
PIECE = 64 * 1024  # bytes of output in one piece

Facts = dict[str, Any]


class Disconnected(EngineFailed):
    """The master was there and is not any more."""


class Live:
    """A job by its master."""

    def __init__(self, job: str, path: Path, token: str) -> None:
        self.job, self._path, self._token = job, path, token

    def status(self) -> Facts:
        return self._once("GET", "/status")

    def events(self, after: int = 0, follow: bool = False) -> Iterator[Facts]:
        return self._lines("/events", {"after": after, **_flag("follow", follow)})

    def log(self, task: str, attempt: int | None = None, offset: int = 0, follow: bool = False) -> Iterator[Facts]:
        """Pieces {task, attempt, offset, next, data} of one task's output, of its latest attempt where None."""
        asked = {"offset": offset, **_flag("follow", follow)} | ({"attempt": attempt} if attempt else {})
        return self._lines(f"/logs/{quote(task)}", asked)

    def stream(self, after: int = 0, logs: bool = False, tail: int | None = None) -> Iterator[Facts]:
        """Events, output, status and samples as they come; {"end": status} last. `tail`: bytes of what was printed before."""
        return self._lines(
            "/stream", {"after": after, **_flag("logs", logs)} | ({} if tail is None else {"tail": tail})
        )

    def act(self, verb: str, **fields: Any) -> Facts:
        """kill, save or dump."""
        return self._once("POST", f"/actions/{verb}", fields)

    def _once(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Facts:
        with _Request(self, method, path, body, ANSWER) as response:
            answer: Facts = json.loads(response.read())
            return answer

    def _lines(self, path: str, asked: Mapping[str, Any]) -> Iterator[Facts]:
        with _Request(self, "GET", f"{path}?{urlencode(asked)}", None, None) as response:
            while line := response.readline():
                if not line.endswith(b"\n"):
                    raise Disconnected("the master went away in the middle of a line")
                yield json.loads(line)

    def open(self, timeout: float | None) -> _UnixConnection:
        return _UnixConnection(self._path, timeout)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path, self._limit = path, timeout

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT)
        self.sock.connect(str(self._path))
        self.sock.settimeout(self._limit)


class _Request:
    """One request; the only place where errors of HTTP and sockets become ours."""

    def __init__(self, live: Live, method: str, path: str, body: Mapping[str, Any] | None, limit: float | None) -> None:
        self._live, self._method, self._path, self._body = live, method, path, body
        self._connection = live.open(limit)

    def __enter__(self) -> http.client.HTTPResponse:
        content = None if self._body is None else json.dumps(self._body).encode()
        try:
            self._connection.request(self._method, PREFIX + self._path, content, self._live.headers)
            response = self._connection.getresponse()
            if response.status >= 400:
                raise _refused(self._live.job, response)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise _gone(self._live.job, error) from error
        except BaseException:
            self._connection.close()
            raise
        return response

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._connection.close()
        if isinstance(error, OSError | http.client.HTTPException | ValueError) and not isinstance(
            error, TrainmasterError
        ):
            raise _gone(self._live.job, error) from error


def _gone(job: str, error: BaseException) -> Disconnected:
    return Disconnected(
        f"the master of {job} does not answer: {str(error) or type(error).__name__}",
        mend=f"it is taken up again by itself; see tm status {job}",
        anchor="master-gone",
    )


def _refused(job: str, response: http.client.HTTPResponse) -> TrainmasterError:
    content = response.read(64 * 1024)
    try:
        detail = str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        detail = f"{response.status} {response.reason}"
    if response.status == 404:
        return NotFound(detail, mend=f"see its tasks: tm status {job}", anchor="no-such-task")
    return EngineFailed(f"the master of {job} refused: {detail}", anchor="master-refused")


def _flag(name: str, value: bool) -> dict[str, int]:
    return {name: 1} if value else {}


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
