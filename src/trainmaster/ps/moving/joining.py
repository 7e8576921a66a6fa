"""The beginning of a server that joins others: it waits until it owns a part of what they have."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

from ... import runtime
from ..leader import seek_leader
from ..wire.connections import Closed
from ..wire.messages import Malformed
from .receiving import Receiving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..peers import Settings
    from ..shard import Shard
    from ..wire.connections import Connection, Message

_AGAIN = 0.1  # s until server 0 is looked for again
_LAST_PART = 60.0  # s for the last records, once server 0 has gone on


class Joining:
    """A server that is not in the placement yet."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._has_ended = False
        self._receiving: Receiving | None = None
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)

    def end(self) -> None:
        """Have `run` return. For any thread, and for a signal's handler."""
        self._has_ended = True
        self._wake()

    def run(self) -> tuple[int, Shard | None] | None:
        """Return the number of servers of a placement that has this one, and its share where it came by a move; None after `end`."""
        print(f"ps: server {self._settings.index} waits until it may join", flush=True)
        try:
            with runtime.phase("waiting to join the other servers"):
                return self._join()
        finally:
            self._woken.close()
            self._waker.close()

    def _join(self) -> tuple[int, Shard | None] | None:
        while (reached := seek_leader(self._settings, tuple, lambda: self._has_ended)) is not None:
            if isinstance(reached, int):
                return reached, None
            try:
                if (arrived := self._serve(reached)) is not None:
                    return arrived
            finally:
                reached.close()
            time.sleep(_AGAIN)
        return None

    def _serve(self, connection: Connection) -> tuple[int, Shard | None] | None:
        """Do what server 0 says, and return the new placement; None once server 0 is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(connection.socket, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            try:
                while not self._has_ended:
                    selector.select()
                    while (message := connection.receive()) is not None:
                        self._hear(message)
                    self._report(connection)
                    if self._receiving is not None and self._receiving.shard is not None:
                        return self._receiving.servers, self._receiving.shard
            except (Closed, Malformed):
                return self._last_part()
            finally:
                self._cancel()
        return None

    def _hear(self, message: Message) -> None:
        header, settings = message.header, self._settings
        if message.op != "move":
            return
        self._cancel()
        if settings.index < header["servers"]:
            self._receiving = Receiving(
                header["move"], settings.index, header["servers"], header["from"], settings.token, settings.certificate, self._wake
            )  # fmt: skip
            self._receiving.start()

    def _report(self, connection: Connection) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(64)
        receiving = self._receiving
        if receiving is None:
            return
        if (report := receiving.report()) is not None:
            connection.send(report)
        if receiving.error:
            self._receiving = None

    def _last_part(self) -> tuple[int, Shard | None] | None:
        """Return the new placement where server 0 has gone, since it has gone on to that."""
        receiving = self._receiving
        if receiving is None or not receiving.has_caught_up:
            return None
        receiving.join(_LAST_PART)
        return None if receiving.shard is None else (receiving.servers, receiving.shard)

    def _cancel(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"x")
