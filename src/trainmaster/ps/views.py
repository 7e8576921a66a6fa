"""Pulls that all servers answer at one entry of the order, so that they are of one version whatever is pushed meanwhile.

A worker asks each server for a pull of one *view*, a name that it makes. A server holds such a pull, and has server 0 know. Once all hold
one, server 0 adds the entry `view`, and each server answers as it handles that. While a server is away, all workers are asked to try again.
"""

from __future__ import annotations

from .wire.messages import AGAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .peers import Host, Peer
    from .wire.connections import Message


class Views:
    """The views of one server. All methods are for the server's own thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._present = ""  # the view that is being answered
        self._held: list[tuple[str, Peer, Message]] = []
        self._holders: dict[str, set[int]] = {}  # of server 0: by view, the servers that hold a pull

    def holds(self, peer: Peer, message: Message) -> bool:
        """Hold a pull of a view that is not answered yet, and tell whether it was one."""
        view = str(message.header.get("view", ""))
        if view in ("", self._present):
            return False
        self._held.append((view, peer, message))
        if self._host.settings.index == 0:
            self.take_hold(0, view)
        elif self._host.leader is not None:
            self._host.tell(self._host.leader, {"op": "holds", "view": view})
        else:
            self.give_up()
        return True

    def take_hold(self, index: int, view: str, is_lost: bool = False) -> None:
        """As server 0 hear that a server holds a pull, and begin the view with the last of them; or that its worker is gone (`is_lost`)."""
        if is_lost:
            self._holders.pop(view, None)
            return
        self._holders.setdefault(view, set()).add(index)
        if len(self._holders[view]) == self._host.settings.servers:
            del self._holders[view]
            self._host.add({"view": view})

    def answer(self, view: str) -> None:
        """Answer the pulls of a view, as its entry is handled."""
        due = [waiting for waiting in self._held if waiting[0] == view]
        self._held = [waiting for waiting in self._held if waiting[0] != view]
        self._present = view
        for _, peer, message in due:
            self._host.answer(peer, message)
        self._present = ""

    def give_up(self) -> None:
        """Have all that is held asked for again: a server is away, or was."""
        waiting, self._held = self._held, []
        for view, peer, _ in waiting:
            self._holders.pop(view, None)
            self._host.tell(peer, {"op": "answer", "error": "another server is away", "kind": AGAIN})

    def lose(self, peer: Peer) -> None:
        """Drop what a peer asked for that is gone, on server 0 too; where it was a server, what it held, and give up all."""
        lost = [waiting for waiting in self._held if waiting[1] is peer]
        self._held = [waiting for waiting in self._held if waiting[1] is not peer]
        for view, _, _ in lost:
            self._holders.pop(view, None)
            if self._host.leader is not None:
                self._host.tell(self._host.leader, {"op": "holds", "view": view, "is_lost": True})
        if peer.role in ("follower", "leader"):
            others = {view: holders - {peer.index} for view, holders in self._holders.items()}
            self._holders = {view: holders for view, holders in others.items() if holders}
            self.give_up()
