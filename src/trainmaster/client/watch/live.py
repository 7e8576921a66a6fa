"""A job by its living master: REST over the master's Unix socket, or over TLS where it lives on a cluster."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import attrs

from trainmaster.client.jobs.past import Facts
from trainmaster.client.watch.disconnected import Disconnected
from trainmaster.core.errors import BadInput, EngineFailed, NotFound, TrainmasterError
from trainmaster.core.foreign import json_in

if TYPE_CHECKING:
    from trainmaster.core.metrics import Series

PREFIX = "/api/v1"
UNREADABLE = 503  # the master's storage keeps the answer from it; whoever reads the storage by itself may have it
ANSWER = 15.0  # s that a master has for an answer, and for each next line of one: a stream says something each second


class Live:
    """A job by its master."""

    def __init__(self, job: str, connect: Callable[[], socket.socket], token: str) -> None:
        """`connect` opens a connection, within `CONNECT` seconds."""
        self.job, self._connect, self._token = job, connect, token

    def status(self) -> Facts:
        return self._once("GET", "")

    def log(self, task: str, attempt: int | None = None, offset: int = 0) -> Iterator[Facts]:
        """Yield pieces {task, attempt, offset, next, data} of one task's output so far, of its latest attempt where None."""
        return self._lines(
            f"/logs/{quote(task, safe='')}", {"offset": offset} | ({"attempt": attempt} if attempt else {})
        )

    def stream(
        self, after: int = 0, logs: bool = False, tail: int | None = None, bare: bool = False
    ) -> Iterator[Facts]:
        """Yield events, output, status and samples as they come; {"end": status} last. `tail`: bytes of what was printed before. `bare`: of
        output only how far it has come.
        """
        query = {"after": after} | ({"logs": 1} if logs else {}) | ({} if tail is None else {"tail": tail})
        return self._lines("/stream", query | ({"bare": 1} if bare else {}))

    def metrics(self, tasks: Collection[str] | None, names: Collection[str] | None, since: float) -> list[Series]:
        """Return what was measured, of some tasks ("" is the whole job) and names, or of all, after a time in seconds since 1970."""
        from trainmaster.core.metrics import Series

        query = urlencode({"task": [*(tasks or ())], "name": [*(names or ())], "since": since}, doseq=True)
        rows = self._once("GET", f"/metrics?{query}")["series"]
        known = [field.name for field in attrs.fields(Series)]
        return [Series(**{name: row[name] for name in known if name in row}) for row in rows]

    def act(self, verb: str, **fields: Any) -> Facts:
        """Have the master do something with the job: kill, scale, save and others of the REST interface."""
        return self._once("POST", f"/actions/{verb}", fields)

    def _once(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Facts:
        with _Request(self, method, path, body, ANSWER) as response:
            answer: Facts = json.loads(response.read())
            return answer

    def _lines(self, path: str, query: Mapping[str, Any]) -> Iterator[Facts]:
        with _Request(self, "GET", f"{path}?{urlencode(query)}", None, ANSWER) as response:
            while line := response.readline():
                if not line.endswith(b"\n"):
                    raise Disconnected("the master went away in the middle of a line")
                yield json.loads(line)

    def open(self, timeout: float | None) -> _Connection:
        return _Connection(self._connect, timeout)

    @property
    def path(self) -> str:
        return f"{PREFIX}/jobs/{quote(self.job, safe='')}"

    @property
    def headers(self) -> dict[str, str]:
        accept = "application/x-ndjson, application/json"
        return {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json", "Accept": accept}


class _Connection(http.client.HTTPConnection):
    def __init__(self, opened: Callable[[], socket.socket], timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._opened, self._limit = opened, timeout

    def connect(self) -> None:
        self.sock = self._opened()
        self.sock.settimeout(self._limit)


class _Request:
    """One request; the only place where errors of HTTP and sockets become ours."""

    def __init__(self, live: Live, method: str, path: str, body: Mapping[str, Any] | None, limit: float | None) -> None:
        self._live, self._method, self._path, self._body = live, method, path, body
        self._connection = live.open(limit)

    def __enter__(self) -> http.client.HTTPResponse:
        content = None if self._body is None else json.dumps(self._body).encode()
        try:
            self._connection.request(self._method, self._live.path + self._path, content, self._live.headers)
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
        detail = str(json_in(content)["error"])
    except (ValueError, KeyError, TypeError):
        detail = f"{response.status} {response.reason}"
    if response.status == 404:
        return NotFound(detail, mend=f"see its tasks: tm status {job}", anchor="no-such-task")
    if response.status in (400, 409):
        return BadInput(detail, mend=f"see how the job is doing: tm status {job}", anchor="refused-request")
    if response.status == UNREADABLE:
        return Disconnected(f"the master of {job} cannot read it now: {detail}", anchor="storage-failed")
    return EngineFailed(f"the master of {job} refused: {detail}", anchor="master-refused")
