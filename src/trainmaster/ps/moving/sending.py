"""The present owner's side of a move."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from ..placement import server_of_parameter
from ..shard import Shard, owned_arrays
from ..storage.checkpoints import Share, draft_of, part_of
from ..wire.connections import Closed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..shard import Arrays
    from ..wire.connections import Connection

    Plain = dict[str, Any]

_BY_ITSELF = 60.0  # s that the last records have to go out
_STUCK = 60.0  # s that an owner may take nothing
_MOST_BEHIND = 256 * 2**20  # bytes of pushes that may wait to be sent while the share is sent; with more, pushes wait
_NEAR = 16 * 2**20  # the same behind the share: so all owners come to the mark


class Sending:
    """A thread sends what the owners of the next placement need: the share as it is now, and then what `log` is given. Once little is
    left of that, the thread sends a mark, `near`: at most that little comes between the mark and the last record.

    `move`: the sequence of the entry that began it. `changed` is called, in this thread, when `is_behind` ends, or where there is an
    `error`. All methods are for the shard's own thread.
    """

    def __init__(self, shard: Shard, move: int, servers: int, changed: Callable[[], None]) -> None:
        self.move, self.error, self._changed = move, "", changed
        self._share: Share | None = Share(shard)
        self._owners = [Shard(index, servers) for index in range(servers)]
        self._tells_order = shard.index == 0
        self._connections: dict[int, Connection] = {}
        self._log: SimpleQueue[tuple[Plain, Arrays] | None] = SimpleQueue()
        self._added = self._sent = 0  # bytes of pushes, by the shard's thread and by the one that sends
        self._most_behind = _MOST_BEHIND
        self._thread = threading.Thread(target=self._run, name="moving", daemon=True)

    @property
    def is_behind(self) -> bool:
        """Tell whether so much waits to be sent that pushes should wait too."""
        return self._added - self._sent > self._most_behind and not self.error

    def add(self, index: int, connection: Connection) -> None:
        """Take over the connection of the next placement's owner `index`. Sending begins with the last of them."""
        if index in self._connections or index >= len(self._owners) or self._thread.ident is not None:
            connection.close()
            return
        connection.socket.settimeout(_STUCK)
        self._connections[index] = connection
        if len(self._connections) == len(self._owners):
            self._thread.start()

    def log(self, header: Plain, arrays: Arrays) -> None:
        """Send a push, or an entry of the order, behind what was sent before."""
        if self.error:  # the move is about to end
            return
        if header["op"] == "draft" or self._tells_order:
            self._added += _size(arrays)
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
            connection.shut_down()

    def _run(self) -> None:
        try:
            assert self._share is not None
            for header, arrays in self._share.records():
                self._send(header, arrays)
            self._send_log()
        except (Closed, InterruptedError) as error:
            self.error = str(error) or "it was given up"
        finally:  # so that the owners do not wait where something else failed
            self.error = self.error or "it has ended"
            self._shut_down()
            self._changed()

    def _send_log(self) -> None:
        self._most_behind, is_marked = _NEAR, False
        while True:
            if not is_marked and not self.is_behind:
                is_marked = True
                self._send({"op": "near"}, {})
            if (record := self._log.get()) is None:
                return
            was_behind = self.is_behind
            self._send(*record)
            self._sent += _size(record[1])
            if was_behind and not self.is_behind:
                self._changed()

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


def _size(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())
