"""A server's part in moves: server 0 leads them, all present servers send, and the next owners receive."""

from __future__ import annotations

import contextlib
import math
import sys
import time

from ..shard import BadPush
from ..storage.checkpoints import journal_folder
from ..storage.locks import is_left
from ..storage.placements import job_name, note_servers
from ..tables.memory import memory_left, release_memory
from ..wire.connections import Closed
from ..wire.messages import Malformed
from .planning import Move, next_servers
from .receiving import Receiving
from .sending import Sending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from ..peers import Host, Peer
    from ..shard import Arrays, Entry, Shard
    from ..storage.checkpoints import Plain


_LAST_PART = 60.0  # s for the last records
_LAST_LEAVES = 10.0  # s that a server which must end waits for those of higher indexes to leave with it
_FREED_WITHIN = 1.0  # s behind a move's end; its thread may still have memory
# s until a move is tried again that has failed: the first time, and the longest; each time twice as long.
_AGAIN = (5.0, 300.0)


class Moves:
    """The moves of one server, one after another. All methods are for the server's own thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._led: Move | None = None  # by server 0
        self._not_before = 0.0  # when the next one may begin
        self._pause = _AGAIN[0]
        self._was_behind = False
        self._sending: Sending | None = None
        self._receiving: Receiving | None = None
        self._is_failure_told = False  # of the sending
        self._lost: set[int] = set()  # servers that died when they were to leave
        self.is_broken = False  # a server that takes part is gone
        self._lacks_memory = False  # for rows of workers, beside what is moved
        self._ended = -math.inf  # when the last move did
        self.is_due = False  # a server came, or must leave

    @property
    def is_under_way(self) -> bool:
        return self._sending is not None

    @property
    def is_behind(self) -> bool:
        """Tell whether pushes should wait, since the next owners do not come up with them."""
        is_behind = self._sending is not None and self._sending.is_behind
        self._was_behind |= is_behind
        return is_behind

    def has_come_up(self) -> bool:
        """Tell, once, that pushes need not wait any more."""
        if not self._was_behind or self.is_behind:
            return False
        self._was_behind = False
        return True

    def addresses(self) -> list[list[str]]:
        """Return the addresses of all servers, for server 0, which all others follow."""
        followers = sorted(self._host.peers("follower"), key=lambda peer: peer.index)
        return [list(self._host.settings.addresses), *(follower.addresses for follower in followers)]

    def lose(self, peer: Peer) -> None:
        """Note that a server, or one that waits to be one, is gone."""
        if peer.role in ("follower", "newcomer"):
            self.is_broken = True
        if peer.role == "follower" and (peer.leaving_since is not None or _says_last(peer, "leave")):
            self._lost.add(peer.index)
            self.is_due = True

    def log(self, header: Plain, arrays: Arrays) -> None:
        if self._sending is not None:
            self._sending.log(header, arrays)

    def make_room(self) -> bool:
        """Have the present move given up, since workers need its memory; tell whether there is one, or was until now."""
        self._lacks_memory = self.is_under_way
        release_memory()
        return self._lacks_memory or time.monotonic() < self._ended + _FREED_WITHIN

    def look(self, is_ready: bool) -> None:
        """Tell how far this server is; as server 0 begin a move, or end one that cannot go on. `is_ready`: one may begin."""
        if self.is_broken and self._led is not None:
            _warn("a server went away while rows were moved: the present servers go on with them")
            self._give_up()
        self.is_broken = False
        if (receiving := self._receiving) is not None and (report := receiving.report()) is not None:
            if "error" in report:
                self._receiving = None
            self._report(report)
        if self._sending is not None and not self._is_failure_told and (why := self._sending.error or self._lack()):
            self._is_failure_told = True
            self._report({"op": "moved", "move": self._sending.move, "error": why})
        if self.is_due and self._led is None and is_ready and time.monotonic() >= self._not_before:
            self._plan()

    def _lack(self) -> str:
        """Say what memory this server lacks for a move; "": none."""
        if not self._lacks_memory and memory_left() >= 0:
            return ""
        left = max(0, memory_left()) / 2**20
        return (
            f"server {self._host.settings.index} has no memory for the move beside its rows: {left:,.0f} MiB are left"
        )

    def _report(self, report: Plain) -> None:
        if self._host.settings.index == 0:
            self.take_report(0, report)
        elif self._host.leader is not None:
            self._host.tell(self._host.leader, report)

    def _plan(self) -> None:
        settings, followers = self._host.settings, {peer.index: peer for peer in self._host.peers("follower")}
        self._lost -= followers.keys()
        if len(followers) < settings.servers - 1:
            self._do_without(set(range(1, settings.servers)) - followers.keys())
            return
        self.is_due = False
        leaving = {index: peer.leaving_since for index, peer in followers.items() if peer.leaving_since is not None}
        servers = next_servers(settings.servers, {peer.index for peer in self._host.peers("newcomer")}, leaving)
        if servers != settings.servers:
            self._host.add({"moving": servers, "from": self.addresses()})
            return
        for index, since in leaving.items():
            if time.monotonic() < since + _LAST_LEAVES:
                self.is_due = True  # servers of higher index may be about to leave too
            else:
                followers[index].leaving_since = None
                self._host.tell(followers[index], {"op": "stay"})

    def _do_without(self, away: set[int]) -> None:
        """End this placement, where the servers that are away died when they were to leave, and nobody else can take their rows from them:
        the others restore these from the files, if they are here.
        """
        settings = self._host.settings
        servers = settings.servers - len(away)
        logs = [journal_folder(settings.directory, index, settings.servers) for index in away]
        if away <= self._lost and min(away) == servers and settings.directory and all(map(is_left, logs)):
            print(
                f"ps: {_named(away)} died before the rows were given to the others, who read them from {settings.directory}",
                flush=True,
            )
            for index in away:  # it joins the others, if it comes back
                note_servers(settings.directory, index, job_name(settings.token), settings.told_servers, 0)
            self._host.add({"placed": servers})

    def begin(self, entry: Entry) -> None:
        """Begin to send what this server has, and to receive what it will own; or give up both."""
        number, servers, settings = entry["sequence"], entry["moving"], self._host.settings
        self.end()
        if not servers:
            return
        self._sending, self._is_failure_told = Sending(self._host.shard, number, servers, self._host.wake), False
        if settings.index < servers:
            self._receiving = Receiving(
                number, settings.index, servers, entry["from"], settings.token, settings.certificate, self._host.wake
            )
            self._receiving.start()
        if settings.index == 0:
            print(f"ps: rows are moved from {settings.servers} servers to {servers}", flush=True)
            self._led = Move(number, servers)
            for peer in self._host.peers("newcomer"):
                self._host.tell(peer, {"op": "move", "move": number, "servers": servers, "from": entry["from"]})

    def end(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()  # it may wait for this very thread, and is not waited for
        if self._sending is not None:
            self._sending.cancel()
        if self.is_under_way:
            self._ended = time.monotonic()
            self._led = self._sending = self._receiving = None
            release_memory()
        self._lacks_memory = False

    def is_sending(self, number: int) -> bool:
        """Tell whether this server has come to a move's beginning."""
        return self._sending is not None or self._host.shard.sequence > number

    def send_to(self, peer: Peer, number: int, index: int) -> None:
        """Have the next owner `index`, at the other end of a peer's connection, get its part. Raises BadPush."""
        if self._sending is None or self._sending.move != number:
            raise BadPush("this move was given up")
        self._sending.add(index, peer.connection)

    def take_report(self, index: int, report: Plain) -> None:
        """As server 0 hear that a next owner has caught up, or cannot."""
        if self._led is None or self._led.number != report["move"]:
            return
        if "error" in report:
            _warn(f"rows are not moved to {self._led.servers} servers: {report['error']}")
            self._give_up()
            return
        self._led.caught_up.add(index)
        if self._led.is_ready and not self.is_broken:
            self._host.add({"placed": self._led.servers})

    def arrived(self) -> tuple[Shard | None, str]:
        """Wait for the last part of this server's next share, and send the others theirs; returns the share, or why there is none."""
        receiving = self._receiving
        if receiving is not None:
            receiving.join(_LAST_PART)
        if self._sending is not None:
            self._sending.finish()
        if receiving is None:
            return None, "it had not begun"
        return receiving.shard, receiving.error or "it did not come"

    def _give_up(self) -> None:
        self._not_before, self.is_due = time.monotonic() + self._pause, True
        self._pause = min(2 * self._pause, _AGAIN[1])
        self._host.add({"moving": 0})


def _named(servers: Collection[int]) -> str:
    return f"server{'s' * (len(servers) > 1)} {', '.join(map(str, sorted(servers)))}"


def _says_last(peer: Peer, op: str) -> bool:
    """Tell whether a message is among those that were not read of a connection that has ended."""
    with contextlib.suppress(Closed, Malformed):
        while (message := peer.connection.receive()) is not None:
            if message.op == op:
                return True
    return False


def _warn(text: str) -> None:
    print(f"ps: {text}", file=sys.stderr, flush=True)
