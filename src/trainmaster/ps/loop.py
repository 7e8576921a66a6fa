"""The loop of a server: one thread waits for connections, for messages over those that are open, for other threads, and for descriptors."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from functools import partial

from ..runtime.network.strangers import Strangers
from .peers import Peer
from .wire.connections import TO_WORKER, Closed, accept
from .wire.messages import STRANGER_LIMIT, Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from .storage.checkpoints import Plain
    from .wire.connections import Message
    from .wire.messages import Arrays

PATIENCE = 10.0  # s that a stranger has to show the token
OF_A_PEER, OF_ALL = 64, 256  # connections without a token


class Loop:
    """The connections of one server. `hear` is called for each message; `lose` with each connection that is to be closed, while what it
    still holds can be read. Over TCP it serves with `tls`. All methods but `wake` are for the thread that calls `wait`.
    """

    def __init__(
        self, hear: Callable[[Peer, Message], None], lose: Callable[[Peer], None], tls: ssl.SSLContext | None
    ) -> None:
        self._hear, self._lose, self._tls = hear, lose, tls
        self._peers: dict[Peer, None] = {}  # in the order in which they came
        self._strangers: Strangers[Peer] = Strangers(OF_A_PEER, OF_ALL)
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self.watch(self._woken, self._take_wakes)

    def wait(self, seconds: float) -> None:
        """Serve what is there, or comes within so many seconds."""
        for key, events in self._selector.select(seconds):
            key.data(events)

    def wake(self) -> None:
        """Have `wait` return. For any thread, and for a signal's handler."""
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def _take_wakes(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(64)

    def watch(self, source: int | socket.socket, act: Callable[[int], None]) -> None:
        """Call `act` whenever a descriptor can be read."""
        self._selector.register(source, selectors.EVENT_READ, act)

    def unwatch(self, source: int | socket.socket) -> None:
        self._selector.unregister(source)

    def listen(self, listener: socket.socket) -> None:
        self.watch(listener, partial(self._accept, listener))

    def close(self) -> None:
        for peer in self._peers:
            peer.connection.close()
        self._woken.close()
        self._waker.close()
        self._selector.close()

    # -- who is there --

    def peers(self, role: str | None = None) -> list[Peer]:
        """Return those of a role, or all, in the order in which they came."""
        return [peer for peer in self._peers if role is None or peer.role == role]

    def add(self, peer: Peer) -> None:
        self._peers[peer] = None
        self.watch(peer.connection.socket, partial(self._serve, peer))

    def give_away(self, peer: Peer) -> None:
        """Serve a connection no more, which stays open for another thread."""
        del self._peers[peer]
        self.unwatch(peer.connection.socket)

    def drop(self, peer: Peer) -> None:
        """Close a connection."""
        if peer in self._peers:
            self.give_away(peer)
        self._lose(peer)
        peer.connection.close()
        peer.waiting.clear()

    def refuse(self, peer: Peer, why: str, **more: object) -> None:
        """Say why a connection is closed, and close it."""
        with contextlib.suppress(Closed):
            self.send(peer, {"op": "answer", "error": why, "kind": "refused", **more})
        self.drop(peer)

    def drop_strangers(self) -> None:
        """Close the connections that have shown no token for too long."""
        for peer in self.peers(""):
            if time.monotonic() - peer.since > PATIENCE:
                self.drop(peer)

    def _accept(self, listener: socket.socket, events: int) -> None:
        try:
            connection, address = accept(listener, self._tls)
        except (OSError, ValueError):
            return  # gone again, or somebody else's
        connection.header_limit, connection.payload_limit = STRANGER_LIMIT, 0
        peer = Peer(connection, time.monotonic())
        self.add(peer)
        for known in [known for known in self._strangers if known.role or known not in self._peers]:
            self._strangers.leave(known)
        if (leaving := self._strangers.enter(peer, address)) is not None:
            self.drop(leaving)

    # -- messages --

    def send(self, peer: Peer, header: Plain, arrays: Arrays | None = None) -> None:
        """Send a message; the rest of it once there is room. Raises Closed."""
        peer.connection.send(header, arrays, TO_WORKER)
        self._watch_room(peer)

    def tell(self, peer: Peer, header: Plain, arrays: Arrays | None = None) -> None:
        """Send a message that is not an answer. A peer that is gone is dropped, except server 0: its last messages and its end are read."""
        try:
            self.send(peer, header, arrays)
        except Closed:
            if peer.role != "leader":
                self.drop(peer)

    def guard(self, peer: Peer, act: Callable[[Peer], None]) -> None:
        """Act for a peer; one that is gone is dropped, and one whose message is malformed refused."""
        try:
            act(peer)
        except Closed:
            self.drop(peer)
        except Malformed as error:
            self.refuse(peer, str(error))

    def _serve(self, peer: Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self.guard(peer, self._flush)
        if events & selectors.EVENT_READ:
            self.guard(peer, self._receive)

    def _flush(self, peer: Peer) -> None:
        peer.connection.flush()
        self._watch_room(peer)

    def _watch_room(self, peer: Peer) -> None:
        """Hear of room in the socket where there is something to send."""
        is_full = not peer.connection.is_sent
        if is_full != peer.is_watched_for_room and peer in self._peers:
            peer.is_watched_for_room = is_full
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_full else 0)
            self._selector.modify(peer.connection.socket, events, partial(self._serve, peer))

    def _receive(self, peer: Peer) -> None:
        while peer in self._peers and (message := peer.connection.receive()) is not None:
            if peer.role and message.op == "region":
                peer.connection.take_region(message.header)
                continue
            self._hear(peer, message)
            if peer.role == "worker":  # its next message comes behind the answer: others have their turn
                return
