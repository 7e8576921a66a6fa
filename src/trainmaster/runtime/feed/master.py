"""Ask the master of a job which ring gets a batch: by REST, over its Unix socket or TLS, with the job's own certificate and its token.

Questions and answers are those of the master's `connections.feeders`. An answer may take the master some seconds; the question waits in
`read`, without using a core. One that was lost on its way is asked again.
"""

from __future__ import annotations

import http.client
import json
import socket
import time

from ..network.pinned import trusting
from .channel import FeedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Link = dict[str, Any]
    Answer = dict[str, Any]

ANSWERED_WITHIN = 30.0  # s; a master holds a question for some 10
PATIENCE = 60.0  # s that no master answers
_AGAIN = 0.2  # s between two tries to connect


class RunAgain(FeedError):
    """Batches of the partition were lost with their reader: the partition must be fed again, without what was read."""


class Ended(FeedError):
    """The job has ended, or nobody reads its feed any more."""


class Master:
    """The master, for the feed of one role. `link`: job, token, role, feed, and socket, or addresses and certificate (PEM)."""

    def __init__(self, link: Link, is_over: Callable[[], bool] = bool, patience: float = PATIENCE) -> None:
        """`is_over` tells whether the job has ended, so that there is no master to wait for. `patience`: s that none may answer."""
        self._link, self._is_over, self._patience = link, is_over, patience
        self._connection: http.client.HTTPConnection | None = None
        self._addresses = list(link.get("addresses") or ())

    def ask(self, op: str, **fields: Any) -> Answer:
        """Return the answer. Raises RunAgain, Ended, or FeedError with the master's words where it refuses."""
        question = json.dumps({"op": op, "role": self._link["role"], "feed": self._link["feed"], **fields}).encode()
        limit, failures = time.monotonic() + self._patience, 0
        while True:
            try:
                status, answer = self._exchange(question)
                break
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if time.monotonic() > limit or self._is_over():
                    raise Ended(f"no master of {self._link['job']} answers, it may have ended: {error!r}") from error
                time.sleep(_AGAIN if failures else 0)  # an idle connection is closed by the master
                failures += 1
        if status != http.client.OK:
            raise FeedError(f"the master of {self._link['job']} refuses: {answer.get('error', status)}")
        if answer.get("do") == "again":
            raise RunAgain(answer["why"])
        if answer.get("do") == "fail":
            raise Ended(answer["why"])
        if answer.get("do") in ("differs", "unreachable"):
            raise FeedError(answer["why"])
        return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, question: bytes) -> tuple[int, Answer]:
        if self._connection is None:
            self._connection = self._connect()
        headers = {"Authorization": f"Bearer {self._link['token']}", "Content-Type": "application/json"}
        self._connection.request("POST", f"/api/v1/jobs/{self._link['job']}/actions/supply", question, headers)
        response = self._connection.getresponse()
        answer: Answer = json.loads(response.read())
        return response.status, answer

    def _connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=ANSWERED_WITHIN)
        connection.auto_open = 0  # it would connect by itself, to this name
        if path := self._link.get("socket"):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(ANSWERED_WITHIN)
            connection.sock.connect(path)
            return connection
        address = self._addresses.pop(0)
        self._addresses.append(address)  # the next one is tried next
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host.strip("[]"), int(port)), ANSWERED_WITHIN)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a question goes out in two pieces
        connection.sock = trusting(self._link["certificate"]).wrap_socket(plain)
        return connection
