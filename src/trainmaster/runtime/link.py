"""One connection of this process to its agent: a Unix socket, one JSON object per line, both ways.

The agent may be away for a while, or for good where the program runs alone. So `post` never waits and never raises:
a frame that cannot be sent is dropped. `ask` waits for its answer through any absence, connecting anew and asking again;
every request is one that may be sent twice. One thread reads at a time (`_reading`); the other lock is held only for system
calls that return at once, so that no thread waits for one that waits for the agent. A forked child does not share its
parent's connections: it closes its copies and makes its own when it needs one.
"""

from __future__ import annotations

import os
import threading
from time import monotonic, sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    Frame = dict[str, Any]

PROTOCOL = "1.0"
_UNSENT_LIMIT = 256 * 1024  # bytes kept for an agent that does not read
_PAUSES = (0.02, 1.0)  # between tries to connect: the first and the longest


def credentials(limit: float) -> Frame | None:
    """Ask the agent how the programs of this job know each other; None where it does not answer within `limit` seconds."""
    link = Link(os.environ["TRAINMASTER_SOCKET"])
    try:
        answer = link.ask({"op": "credentials"}, limit)
    finally:
        link.end()
    return answer if answer is not None and "token" in answer else None


class Link:
    """A link that connects when first used. `greeting()` is added to the first frame of each connection; `heard` gets the frames
    that answer no request.
    """

    def __init__(
        self, path: str, greeting: Callable[[], Frame] | None = None, heard: Callable[[Frame], None] | None = None
    ) -> None:
        self._path, self._greeting, self._heard = path, greeting, heard
        self._socket: socket.socket | None = None
        self._lock, self._reading = threading.RLock(), threading.RLock()
        self._readers = 0  # threads that wait for the socket: a thread that finds it broken leaves its closing to them
        self._unsent, self._unread = bytearray(), bytearray()
        self._last_id = 0
        self._has_ended = False
        self._retry_at = 0.0  # when `post` may try to connect again
        self._pause = _PAUSES[0]
        _links.append(self)

    def post(self, frame: Frame) -> bool:
        """Send `frame`, or drop it where the agent is away or does not read. Never waits."""
        with self._lock:
            if self._socket is None and not self._try_connect():
                return False
            if len(self._unsent) < _UNSENT_LIMIT:
                self._unsent += _encode(frame)
            return self._push()

    def ask(self, frame: Frame, limit: float | None = None) -> Frame | None:
        """Return the answer to `frame`, however long the agent is away; None after `limit` seconds, or where this link has ended."""
        deadline = None if limit is None else monotonic() + limit
        if not self._reading.acquire(timeout=-1 if limit is None else limit):
            return None
        try:
            while not self._has_ended and (deadline is None or monotonic() < deadline):
                try:
                    return self._ask_once(frame, deadline)
                except (OSError, ValueError):  # the agent is away, or something else answers
                    self._retreat()
                except BaseException:  # an interrupt: the answer would come later and find nobody
                    self.close()
                    raise
            return None
        finally:
            self._reading.release()

    def listen(self) -> None:
        """Hand the agent's frames to `heard` until this link has ended. For a thread of its own."""
        while not self._has_ended:
            with self._reading:
                try:
                    self._open()
                    self._dispatch(self._frame(None))
                except (OSError, ValueError):
                    self._retreat()

    def poll(self) -> None:
        """Hand to `heard` the frames that the agent has sent by now. Never waits."""
        if not self._reading.acquire(blocking=False):
            return  # somebody reads already
        try:
            with self._lock:
                if self._socket is None and not self._try_connect():
                    return
                self._push()
            while self._socket is not None:
                self._dispatch(self._frame(monotonic()))
        except TimeoutError:
            return
        except (OSError, ValueError):
            self.close()
        finally:
            self._reading.release()

    def flush(self, limit: float) -> None:
        """Send the unsent frames, for at most `limit` seconds."""
        try:
            self._send_all(monotonic() + limit)
        except OSError:
            self._abandon()

    def close(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = None
            self._unsent.clear()
            self._unread.clear()

    def end(self) -> None:
        """Close for good."""
        self._has_ended = True
        self._abandon()
        if self in _links:
            _links.remove(self)

    # -- below --

    def _connect(self) -> None:
        import socket

        if self._has_ended:  # by another thread, between its last look and here: nobody would end a new connection
            raise ConnectionError("this link has ended")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)  # a full backlog is an absent agent, not a wait
            connection.connect(self._path)
            attempt = int(os.environ.get("TRAINMASTER_ATTEMPT") or 0)
            hello = {"op": "hello", "v": PROTOCOL, "attempt": attempt, "pid": os.getpid()}
            self._unsent[:] = _encode({**hello, **(self._greeting() if self._greeting else {})})
        except BaseException:
            connection.close()
            raise
        self._socket = connection

    def _open(self) -> None:
        with self._lock:
            if self._socket is None:
                self._connect()
            self._push()

    def _retreat(self) -> None:
        """Close, and wait a while. For the thread that reads."""
        self.close()
        sleep(self._pause)
        self._pause = min(self._pause * 2, _PAUSES[1])

    def _abandon(self) -> None:
        """Give up a broken connection. While a thread waits for the socket, only shut it down: a close would leave it waiting for ever."""
        import socket

        with self._lock:
            if self._readers and self._socket is not None:
                self._unsent.clear()
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:  # it is not connected any more, which wakes the thread too
                    return
            else:
                self.close()

    def _wait(self, event: int, until: float | None) -> None:
        """Wait until the socket can be read, or written. Raises TimeoutError once `until` has passed."""
        import select

        with self._lock:
            if self._socket is None:
                raise ConnectionError("closed")
            poll = select.poll()
            poll.register(self._socket, event)
            self._readers += 1
        try:
            if not poll.poll(None if until is None else max(0.0, until - monotonic()) * 1000):
                raise TimeoutError
        finally:
            with self._lock:
                self._readers -= 1

    def _try_connect(self) -> bool:
        if monotonic() < self._retry_at:
            return False
        try:
            self._connect()
        except OSError:
            self._retry_at = monotonic() + _PAUSES[1]
            return False
        return True

    def _push(self) -> bool:
        try:
            while self._unsent and self._socket is not None:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return True  # it goes with the next frame
        except OSError:
            self._abandon()
            return False
        return True

    def _send_all(self, until: float | None) -> None:
        import select

        while True:
            with self._lock:
                if not self._push():
                    raise ConnectionError("the agent closed the connection")
                if not self._unsent or self._socket is None:
                    return
            self._wait(select.POLLOUT, until)

    def _ask_once(self, frame: Frame, until: float | None) -> Frame:
        with self._lock:
            if self._socket is None:
                self._connect()
            self._last_id += 1
            request_id = self._last_id
            self._unsent += _encode({**frame, "id": request_id})
        self._send_all(until)
        while True:
            answer = self._frame(until)
            self._pause = _PAUSES[0]
            if answer.get("id") == request_id:
                return answer
            self._dispatch(answer)

    def _frame(self, until: float | None) -> Frame:
        """Return the next frame. Raises TimeoutError once `until` has passed, ConnectionError where the agent closed or
        refused us. For the thread that holds `_reading`.
        """
        import json
        import select

        while (end := self._unread.find(b"\n")) < 0:
            try:
                with self._lock:
                    if self._socket is None:
                        raise ConnectionError("closed")
                    piece = self._socket.recv(65536)
                    self._unread += piece
            except BlockingIOError:
                self._wait(select.POLLIN, until)
                continue
            if not piece:
                raise ConnectionError("the agent closed the connection")
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        frame = json.loads(line)
        if not isinstance(frame, dict):
            raise ValueError("not a frame")
        if frame.get("op") == "refused":
            self._pause = _PAUSES[1]
            raise ConnectionError(str(frame.get("why")))
        return frame

    def _dispatch(self, frame: Frame) -> None:
        if self._heard is not None:
            self._heard(frame)

    def _in_child(self) -> None:
        self._lock, self._reading, self._readers = threading.RLock(), threading.RLock(), 0
        self._retry_at = 0.0
        self.close()


_links: list[Link] = []


def _after_fork() -> None:
    for link in list(_links):
        link._in_child()


os.register_at_fork(after_in_child=_after_fork)


def _encode(frame: Frame) -> bytes:
    import json

    return json.dumps(frame, separators=(",", ":")).encode() + b"\n"
