"""The owner of a feed: its memory, and the socket at which feeders and the reader ask for parts of it.

The owner lives in the loop of its process, an agent. The messages are in `trainmaster.runtime.feed.channel`, the decisions in `ring`. The
memory is a file without a name. All its pages are taken before anybody has it, and its size is sealed, so no access ends in SIGBUS. Nothing
is left of it once its processes are gone, however they ended. A killed owner leaves its socket, which `sweep` removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from trainmaster.core.errors import EngineFailed
from trainmaster.core.foreign import json_in
from trainmaster.data.feed.answers import Answers
from trainmaster.data.feed.ring import ALIGNMENT, PARTS, READER, Answer, Ring
from trainmaster.runtime.feed.channel import MESSAGE_LIMIT, PROTOCOL
from trainmaster.runtime.network.listeners import FEED_HERE
from trainmaster.runtime.states.memory_slots import free_memory

Send: TypeAlias = Callable[..., None]  # of a message, and descriptors with it

SUFFIX = ".feed"
SPARE = 16 * 1024 * 1024  # bytes of memory that must be free beside a new ring
_MESSAGES = 64  # of one connection at once
_ROLES = {"feed", "read"}

log = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Connection:
    """A connection. `party` is None until it has greeted."""

    socket: socket.socket
    party: int | None = None


class Owner:
    """The owner of a ring of about `size` bytes, at the socket `path`, which ends in `SUFFIX`. Only this user may connect."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.ring = path, Ring(max(-(-size // ALIGNMENT), PARTS) * ALIGNMENT)
        self._memory = self._last_feeder = -1
        self._answers = Answers()
        self._listener: socket.socket | None = None
        self._connections: set[_Connection] = set()
        self._parties: dict[int, Send] = {}
        self._streams: dict[int, Callable[[], None]] = {}  # how to end the feeders that `admit` took in
        self.has_changed: Callable[[], None] = lambda: None  # called when the ring has changed
        self._operations = {
            "reserve": self._reserve, "written": self._commit, "flush": self._flush, "collect": self._collect,
        }  # fmt: skip
        self._reader_operations = {"next": self._demand, "release": self._release, "stop": self._stop}

    def allocate(self) -> None:
        """Take the memory, which may last; `open` does it too. Raises EngineFailed where there is too little."""
        if self._memory < 0:
            self._memory = _allocate(self.ring.size)

    def open(self) -> None:
        """Take the memory and listen. Raises EngineFailed where there is too little memory, or another owner at the path."""
        self._last_feeder = READER
        self.allocate()
        try:
            self._listener = _listen(self.path)
        except BaseException:
            self.close()
            raise
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def settle(self) -> None:
        """Send what is due after a change of the ring."""
        self._send_answers([])

    def drain(self) -> None:
        """Take in all that was sent by now."""
        for connection in list(self._connections):
            self._receive(connection, sys.maxsize)

    def admit(self, send: Send, end: Callable[[], None]) -> int:
        """Take in a feeder that is connected otherwise than by the socket; return its number.

        `send` must not wait, and keeps no descriptor. `end` ends the connection.
        """
        self._last_feeder += 1
        feeder = self._last_feeder
        self._parties[feeder], self._streams[feeder] = send, end
        send({"op": "ring", "size": self.ring.size, "largest": self.ring.largest})
        self._send_answers(self.ring.join(feeder))
        return feeder

    def receive(self, feeder: int, message: dict[str, Any]) -> None:
        """Take in a message of such a feeder. Raises ValueError, KeyError or TypeError if malformed, OSError for a dismissed feeder."""
        if feeder not in self._streams:
            raise ConnectionResetError
        self._operations[message["op"]](feeder, message)
        self._send_answers([])

    def write(self, feeder: int, offset: int, content: bytes) -> None:
        """Write bytes of the batch for which such a feeder has room. Raises ValueError where it has none, OSError as `receive`."""
        if self._memory < 0 or feeder not in self._streams:
            raise ConnectionResetError
        if (part := self.ring.written_by(feeder)) is None or offset + len(content) > part.size:
            raise ValueError("the feeder writes nothing there")
        os.pwrite(self._memory, content, part.at + offset)

    def dismiss(self, feeder: int) -> None:
        """Forget such a feeder, with what it has written in part, and the results that it did not take."""
        if self._streams.pop(feeder, None) is not None:
            del self._parties[feeder]
            self._answers.leave(feeder)
            self.ring.leave(feeder)
            self._send_answers([])

    def stop(self) -> None:
        """Accept nothing more: all feeders stop at once, and the reader has what it has."""
        self._send_answers(self.ring.stop())

    def close(self) -> None:
        """End all connections, and remove the socket. The memory ends with the last array that a program has of it."""
        for connection in list(self._connections):
            self._drop(connection)
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            self.path.unlink(missing_ok=True)
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    # -- connections --

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(
            OSError
        ):  # it is gone already, or there is no descriptor left: then others end theirs first
            accepted, _ = self._listener.accept()
            accepted.setblocking(False)
            connection = _Connection(accepted)
            self._connections.add(connection)
            asyncio.get_running_loop().add_reader(accepted, self._receive, connection)

    def _receive(self, connection: _Connection, most: int = _MESSAGES) -> None:
        for _ in range(most):
            files: list[int] = []
            try:
                content, files, _, _ = socket.recv_fds(connection.socket, MESSAGE_LIMIT, 1)
                if not content:
                    self._drop(connection)
                    break
                message = json_in(content)
                if files:
                    self._take_answer(connection, message, files.pop())
                else:
                    self._dispatch(connection, message)
            except (
                ConnectionResetError
            ):  # it ended with answers unread: what it sent before comes now, and then the end
                continue
            except BlockingIOError:
                break
            except OSError:
                self._drop(connection)
                break
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                log.warning("a connection to the feed %s sent a wrong message, and was closed: %s", self.path, error)
                self._drop(connection)
                break
            finally:
                for file in files:  # came with a message that may bring none
                    os.close(file)
        self._send_answers([])

    def _drop(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        asyncio.get_running_loop().remove_reader(connection.socket)
        connection.socket.close()
        if connection.party is not None:
            del self._parties[connection.party]
            if connection.party == READER:
                self.ring.lose_reader()
                waiting = self._answers.feeders  # what the reader had read gets no results any more: they feed it anew
                for feeder in [other for other in self._connections if other.party in waiting]:
                    self._drop(feeder)
                for number in [number for number in self._streams if number in waiting]:
                    end = self._streams[number]
                    self.dismiss(number)
                    end()
            else:
                self._answers.leave(connection.party)
                self.ring.leave(connection.party)

    def _send_answers(self, first: list[Answer]) -> None:
        """Send these answers, and then those that are due."""
        answers = deque(first) or deque(self.ring.settle())
        while answers:
            party, message = answers.popleft()
            if (send := self._parties.get(party)) is not None:
                if message["op"] == "batch" and (wish := self._answers.wish(message["number"])):
                    message["answers"] = wish
                send(message)
            if not answers:
                answers.extend(self.ring.settle())
        self.has_changed()

    def _send(self, connection: _Connection, message: dict[str, Any], *descriptors: int) -> None:
        try:
            socket.send_fds(connection.socket, [json.dumps(message, separators=(",", ":")).encode()], descriptors)
        except BlockingIOError:  # a party has a few messages unread at most, so one that takes no more is broken
            self._drop(connection)
        except OSError as error:  # it has ended: `_receive` comes to that behind what it sent before
            log.debug("a connection to the feed %s has ended: %s", self.path, error)

    # -- messages --

    def _dispatch(self, connection: _Connection, message: dict[str, Any]) -> None:
        party = connection.party
        if party is None:
            self._greet(connection, message)
        elif party == READER:
            self._reader_operations[message["op"]](message)
        else:
            self._operations[message["op"]](party, message)

    def _greet(self, connection: _Connection, message: dict[str, Any]) -> None:
        if message["op"] not in _ROLES:
            raise ValueError(f"{str(message)[:80]} is not a greeting")
        if str(message["v"]).partition(".")[0] != PROTOCOL.partition(".")[0]:
            reason = f"the feed speaks version {PROTOCOL} of its protocol, and not {message['v']}: use one version of Trainmaster"
            self._send(connection, {"op": "refused", "why": reason})
            return
        if message["op"] == "read" and READER in self._parties:
            reader = next(connection for connection in self._connections if connection.party == READER)
            self._receive(reader)  # it may have ended, and we have not looked yet
            if READER in self._parties:
                reason = f"the feed {self.path} has a reader already, and can have one: read it in one process"
                self._send(connection, {"op": "refused", "why": reason})
                return
        if message["op"] == "feed":
            self._last_feeder += 1
        connection.party = READER if message["op"] == "read" else self._last_feeder
        self._parties[connection.party] = functools.partial(self._send, connection)
        self._send(connection, {"op": "ring", "size": self.ring.size, "largest": self.ring.largest}, self._memory)
        if connection.party != READER:
            self._send_answers(self.ring.join(connection.party))

    def _reserve(self, party: int, message: dict[str, Any]) -> None:
        stage, partition, batch = map(int, message["number"])
        if (limit := message.get("limit")) is not None:  # from the master; it may reach the feeder before us
            self.ring.permit(int(limit), int(message.get("ahead", 0)))
        self.ring.reserve(
            party, (stage, partition, batch), int(message["size"]), rows=int(message["rows"]),
            waits=bool(message.get("waits", True)), try_=int(message.get("try", 0)),
        )  # fmt: skip
        if wish := message.get("answers"):
            self._answers.expect(party, (stage, partition, batch), is_last=wish == "last")

    def _take_answer(self, connection: _Connection, message: dict[str, Any], file: int) -> None:
        """Pass a file of results on to the feeder of their rows, or keep it until that asks."""
        try:
            if connection.party != READER or message["op"] != "answer":
                raise ValueError(f"{str(message)[:80]} brings no file")
            stage, partition = map(int, message["number"])
            feeder = self._answers.add((stage, partition), int(message["rows"]), file)
        except BaseException:
            os.close(file)
            raise
        if feeder is not None:
            self._send_answer(feeder)

    def _collect(self, party: int, message: dict[str, Any]) -> None:
        self._answers.ask(party)
        self._send_answer(party)

    def _send_answer(self, party: int) -> None:
        if (answer := self._answers.take(party)) is not None:
            rows, file = answer
            self._parties[party]({"op": "answer", "rows": rows}, file)
            os.close(file)

    def _commit(self, party: int, message: dict[str, Any]) -> None:
        self.ring.commit(party)

    def _flush(self, party: int, message: dict[str, Any]) -> None:
        if not self.ring.has_stopped:
            self._parties[party]({"op": "ok", "supply": self.ring.supply})

    def _demand(self, message: dict[str, Any]) -> None:
        self.ring.demand()

    def _release(self, message: dict[str, Any]) -> None:
        self.ring.release(int(message["at"]))

    def _stop(self, message: dict[str, Any]) -> None:
        self.stop()


def sweep(folder: Path) -> list[Path]:
    """Remove the sockets of owners that are dead. Return their paths."""
    dead = [path for path in folder.glob(f"*{SUFFIX}") if not _is_owned(path)]
    for path in folder.glob(f"*{SUFFIX}.*"):  # its owner was just about to listen
        if not Path("/proc", path.suffix[1:]).exists():
            dead.append(path)
    for path in dead:
        path.unlink(missing_ok=True)
    return dead


def _allocate(size: int) -> int:
    """Return the descriptor of `size` bytes of shared memory that are there. Raises EngineFailed."""
    free = free_memory()
    if free < size + SPARE:
        raise _no_room(size, f"{free:,} are free")
    memory = os.memfd_create("trainmaster-feed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(memory, 0, size)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:  # a limit that free memory does not show, as RLIMIT_FSIZE
        os.close(memory)
        raise _no_room(size, f"they cannot be had: {error.strerror}") from error
    return memory


def _no_room(size: int, reason: str) -> EngineFailed:
    return EngineFailed(
        f"the feed's ring needs {size:,} bytes of shared memory, and {reason}",
        mend="make the ring smaller, or give the role more memory",
    )


def _listen(path: Path) -> socket.socket:
    """Return a socket that listens at `path`. It is there only once it does, so that `sweep` does not take it for a dead owner's."""
    if path.exists() and _is_owned(path):
        raise EngineFailed(
            f"the feed {path} has an owner already", mend="end the other agent, or name the feed otherwise"
        )
    listener = FEED_HERE.at_path(str(path))
    listener.setblocking(False)
    return listener


def _is_owned(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # too many wait there: somebody listens
            return True
    return True
