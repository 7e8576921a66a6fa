"""The next owner's side of a move."""

from __future__ import annotations

import functools
import selectors
import threading
from collections import deque

from ..shard import LostDraft, Shard
from ..storage.checkpoints import Loader, draft_of
from ..storage.restoring import Parts
from ..tables.memory import memory_left
from ..wire.connections import Closed, first_reached
from ..wire.messages import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..wire.connections import Connection, Message

    Plain = dict[str, Any]

_REACHED_WITHIN = 30.0  # s, for each present server to answer


class Receiving(threading.Thread):
    """A thread builds the share of server `index` of `servers` from what the present servers send.

    `changed` is called, in this thread, once it has caught up, and once it has ended. Then `shard` is the share at the last entry of the
    present placement, or `error` says why there is none. `move`: the sequence of the entry that began it.
    """

    def __init__(
        self, move: int, index: int, servers: int, present: Sequence[Sequence[str]], token: str, certificate: str,
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(name="moving-here", daemon=True)
        self.move, self.servers, self.error = move, servers, ""
        self.shard: Shard | None = None
        self.has_caught_up = self._is_reported = self._has_shares = False
        self._present, self._token, self._certificate, self._changed = present, token, certificate, changed
        self._building = Shard(index, servers)
        self._loaders = [Loader(self._building) for _ in present]
        self._parts = Parts(len(present))
        self._entries: deque[Plain] = deque()  # of the order, not handled yet
        self._near: set[int] = set()  # servers that have sent nearly all
        self._connections: list[Connection] = []
        self._is_cancelled = False

    def run(self) -> None:
        try:
            for number, addresses in enumerate(self._present):
                self._connections.append(self._reached(number, addresses))
                if self._is_cancelled:
                    raise Closed("it was given up")
            self._receive()
        except (OSError, Malformed, LostDraft, MemoryError, ValueError) as error:
            self.error = str(error) or "there is no memory"
        finally:
            if self.shard is None:
                self.error = self.error or "it failed; what it has printed says why"
            for connection in self._connections:
                connection.close()
            self._changed()

    def cancel(self) -> None:
        """End at the next message. For any thread."""
        self._is_cancelled = True
        for connection in list(self._connections):
            connection.shut_down()

    def report(self) -> Plain | None:
        """Return the message for server 0: that this one has caught up (once), or the error. None: nothing to report."""
        report: Plain = {"op": "moved", "move": self.move}
        if self.error:
            return report | {"error": self.error}
        if not self.has_caught_up or self._is_reported:
            return None
        self._is_reported = True
        return report

    def _reached(self, number: int, addresses: Sequence[str]) -> Connection:
        return first_reached(addresses, self._certificate, f"server {number}", functools.partial(self._ask, number))[0]

    def _ask(self, number: int, connection: Connection) -> None:
        """Ask a present server for what this one will own. Raises Closed."""
        building = self._building
        connection.socket.settimeout(_REACHED_WITHIN)
        hello = {"op": "hello", "role": "heir", "token": self._token, "task": f"ps:{building.index}", "attempt": 0}
        connection.send({**hello, "index": number, "servers": len(self._present)})
        answer = connection.receive()
        if answer is None or "error" in answer.header:
            raise Closed(f"server {number} did not let it in: {answer.header['error'] if answer else 'no answer'}")
        connection.send({"op": "take", "move": self.move, "index": building.index})
        connection.socket.setblocking(False)

    def _receive(self) -> None:
        with selectors.DefaultSelector() as selector:
            for number, connection in enumerate(self._connections):
                selector.register(connection.socket, selectors.EVENT_READ, number)
            while self._building is not self.shard:
                for key, _ in selector.select():
                    self._read(selector, key.data)

    def _read(self, selector: selectors.BaseSelector, number: int) -> None:
        connection = self._connections[number]
        try:
            while self._building is not self.shard and (message := connection.receive()) is not None:
                self._take(number, message)
        except Closed:
            if self._is_cancelled or not selector.get_map() or len(selector.get_map()) == 1:
                raise
            selector.unregister(connection.socket)  # it may have sent all; a part that is missing is noticed
            if not self._loaders[number].is_whole:
                raise

    def _take(self, number: int, message: Message) -> None:
        header = message.header
        if "error" in header:
            raise Closed(f"server {number}: {header['error']}")
        loader = self._loaders[number]
        if not loader.is_whole:
            self._check_room(header, message)
            loader.take(header, message.arrays)
            for draft in loader.drafts:
                self._parts.add(number, draft.name, draft)
            loader.drafts = []
        elif header["op"] == "draft":
            draft = draft_of(header, message.arrays)
            if not self._building.is_late(draft.name):
                self._parts.add(number, draft.name, draft)
        elif header["op"] == "near":
            self._near.add(number)
        elif header["op"] == "entry":
            self._entries.append(header)
        if all(loader.is_whole for loader in self._loaders):
            self._go_on()

    def _check_room(self, header: Plain, message: Message) -> None:
        if header["op"] == "rows" and message.payload > (left := memory_left()):
            raise MemoryError(
                f"server {self._building.index} of {self.servers} has no memory for the rows that it would get beside those that it has:"
                f" {message.payload / 2**20:,.0f} MiB of them come next, and {max(0, left) / 2**20:,.0f} MiB are left for rows"
            )

    def _go_on(self) -> None:
        """Handle the entries whose pushes are here."""
        shard = self._building
        if not self._has_shares:
            self._has_shares = True
            for name in self._parts.committed():
                self._parts.hold(name, shard)
        while self._entries:
            entry = self._entries[0]
            names = [
                tuple(name)
                for name in (entry["of"] if "version" in entry else [entry["commit"]] if "commit" in entry else [])
            ]
            if not all(name in shard.drafts or self._parts.has(name) for name in names):
                break
            for name in names:
                self._parts.hold(name, shard)
            shard.handle(self._entries.popleft())
            if "drop" in entry or "attempt" in entry:
                self._parts.forget(shard.is_late)
            if shard.placed:
                self.shard = shard
                return
        if not self.has_caught_up and len(self._near) == len(self._loaders):
            self.has_caught_up = True
            self._changed()
