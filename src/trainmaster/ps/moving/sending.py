"""The present owner's side of a move."""

from __future__ import annotations

import contextlib
import socket
import threading
from queue import SimpleQueue

from ..placement import server_of_parameter
from ..shard import Shard, owned_arrays
from ..storage.checkpoints import Share, draft_of, part_of
from ..wire.connections import Closed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..shard import Arrays
    from ..wire.connections import Connection

    Plain = dict[str, Any]

_BY_ITSELF = 60.0  # s that the last records have to go out


class Sending:
    """A thread sends what the owners of the next placement need: the share as it is now, and then what `log` is told.

    `move`: the sequence of the entry that began it. All methods are for the shard's own thread.
    """

    def __init__(self, shard: Shard, move: int, servers: int) -> None:
        self.move = move
        self._share: Share | None = Share(shard)
        self._owners = [Shard(index, servers) for index in range(servers)]
        self._tells_order = shard.index == 0
        self._connections: dict[int, Connection] = {}
        self._log: SimpleQueue[tuple[Plain, Arrays] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="moving", daemon=True)

    def add(self, index: int, connection: Connection) -> None:
        """Take over the connection of the next placement's owner `index`. Sending begins with the last of them."""
        if index in self._connections or self._thread.ident is not None:
            connection.close()
            return
        connection.socket.setblocking(True)
        self._connections[index] = connection
        if len(self._connections) == len(self._owners):
            self._thread.start()

    def log(self, header: Plain, arrays: Arrays) -> None:
        """Send a push, or an entry of the order, behind what was sent before."""
        if header["op"] == "draft" or self._tells_order:
            self._log.put((header, owned_arrays(arrays)))

    def finish(self) -> None:
        """Wait until all is sent, and end."""
        self._log.put(None)
        if self._thread.ident is not None:
            self._thread.join(_BY_ITSELF)
        self.cancel()

    def cancel(self) -> None:
        self._log.put(None)
        if self._share is not None:
            self._share.interrupt()
        self._shut_down()
        if self._thread.ident is not None:
            self._thread.join()
        for connection in self._connections.values():
            connection.close()
        if self._share is not None:
            self._share.end()
            self._share = None

    def _shut_down(self) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            assert self._share is not None
            for header, arrays in self._share.records():
                self._send(header, arrays)
            while (record := self._log.get()) is not None:
                self._send(*record)
        except (Closed, InterruptedError):
            pass  # an owner that is gone ends the move, which server 0 sees
        finally:  # so that the owners do not wait where something else failed
            self._shut_down()

    def _send(self, header: Plain, arrays: Arrays) -> None:
        for owner, part in self._parts(header, arrays):
            self._connections[owner.index].send(header, part)

    def _parts(self, header: Plain, arrays: Arrays) -> Iterator[tuple[Shard, Arrays]]:
        """Yield each owner that gets a record, and what it gets of its arrays."""
        for owner in self._owners:
            if header["op"] == "draft":
                yield owner, part_of(draft_of(header, arrays), owner)
            elif header["op"] == "rows":
                chosen = arrays["ids"] % owner.servers == owner.index
                if chosen.any():
                    yield owner, {name: array[chosen] for name, array in arrays.items()}
            elif header["op"] != "dense" or server_of_parameter(header["name"], owner.servers) == owner.index:
                yield owner, arrays
