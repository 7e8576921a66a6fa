"""One parameter server, of one thread (see `loop`): it answers pulls, keeps drafts and handles the order.

Every message has one answer, except those between servers. A message may wait (for a version, for a definition): it is looked at again
after each step of the order, and holds up nobody else.

    hello {token, task, attempt, index, servers, leader?}
                                                    welcome {version, is_defined}; with role "server": entries follow. `leader`: the
                                                    addresses of server 0 as the worker knows them
    region {direction, size}, with a descriptor     no answer (see `wire.connections`)
    define {definition}, values                     {version}; at server 0, which tells the others
    pull {dense, at_least, half, view?}, ids        {version}, rows and values; waits until the server has version `at_least`, or comes
                                                    to the entry `view`
    draft {step, base, rate, is_last}, gradients    {}; `is_last`: there is one server, so commit too; then with `is_pull` all values
    commit {step}                                   {version, why}; at server 0
    checkpoint                                      {version}; at server 0, of the present version
    ids {table}                                     {version}, the ids that have a row
    seed {table}, ids, rows                         {version}; rows that a training begins with, before its first version
    definition                                      {version, definition}
    status                                          {version, completed, applied, sequence, tables, drafts, directory,
                                                    unsaved: the newest version whose share could not be written here}
    flush                                           {version}; at server 0, which makes a version of the pushes that wait for others
    placement                                       {servers, addresses of each}; at server 0
    follow {after}                                  from a server to server 0: `definition` and `entry` messages, without end
    saved {version, sequence, index, share}         from a server to server 0: its share of a checkpoint is written
    leave                                           from a server to server 0: it must end, and others are to have its rows
    take {move, index}                              from the next owner of rows to a present one (see `moving`); records follow
    holds {view, is_lost?}                          from a server to server 0: a pull waits for this entry, or no more
    moved {move, error?}                            from the next owner to server 0: it has caught up

A stranger has 10 seconds and one small message to show the token; with a wrong one it gets an error, and its connection is closed. Only
"role" distinguishes workers and servers: both have the job's token. A message that is malformed ends its connection; one that is well
formed and cannot be served is answered with {error}.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import shutil
import sys
import threading
import time

from .. import runtime
from .leader import seek_leader
from .loop import Loop
from .moving.moves import Moves
from .order import decide, of_all_waiting
from .peers import Fatal, Peer, Renumbered
from .shard import FORMER, IDS, BadPush, Draft, LostDraft, NoMemory, NotFinite, Shard, owned_arrays
from .specification import BadDefinition, definition_of, values_of
from .storage.checkpoints import draft_header, journal_folder, manifests, remove_beyond, sound_manifests
from .storage.former import newest_former
from .storage.journal import Journal, records_behind
from .storage.placements import job_name, note_servers
from .storage.restoring import restore
from .storage.saving import Saving
from .tables.clock import Clock
from .tables.memory import memory_left
from .tables.table import BadIds
from .views import Views
from .wire.connections import Closed
from .wire.messages import AGAIN, BAD, MOVED, NOT_FINITE, Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Sequence
    from typing import Any

    from .peers import Settings
    from .shard import Arrays, Entry
    from .storage.checkpoints import Plain
    from .wire.connections import Connection, Message

LOG_LIMIT = 2**30  # bytes of a log, or twice the tables' memory, after which a checkpoint is made though nobody asks
_ROLES = ("worker", "server", "heir")  # of a hello
_LAST = 10.0  # s that a server which leaves waits for server 0 to be back, and server 0 for its last words to go
_EVERY = 1.0  # s between two looks at strangers and figures
_KEPT_UNASKED = 2  # checkpoints, where nobody asked for any
_KEPT = 100_000  # entries in memory, for servers that come back; older ones are in the log


class Server:
    """A server with its state restored, which waits for the end of its former process. Over TCP it serves with `tls`. `shard`: its share
    where a move has brought it. Raises CannotRestore, Renumbered and OSError.
    """

    def __init__(self, settings: Settings, tls: ssl.SSLContext | None = None, shard: Shard | None = None) -> None:
        self.settings = settings
        self._loop = Loop(self._hear, self._lose, tls)
        self.leader: Peer | None = None
        self._reached: list[Connection] = []  # to server 0, by the thread that connects
        self._renumbered = 0  # how many servers there are, as server 0 says
        self._leader_seen = time.monotonic()
        self._is_leaving = self._is_leave_asked = self._is_leader_ending = False
        self._leader_addresses: list[str] = []  # as a worker knows them
        self._entries: list[Entry] = []  # of server 0, for the others
        self._journal: Journal | None = None
        self._is_settling = False  # until the first checkpoint of this number of servers
        self._settling = contextlib.ExitStack()  # what the status shows meanwhile
        self._has_ended = False
        self._job = job_name(settings.token)
        self._saving, self._views, self._moves = Saving(self), Views(self), Moves(self)
        self.shard = self._restored() if shard is None else self._arrived(shard)
        self.shard.room = memory_left
        servers, self.shard.placed = self.shard.placed, 0
        if servers not in (0, settings.servers):  # its former process ended behind a move
            self._close()
            raise Renumbered(servers)
        self._note(settings.servers)  # before a checkpoint of so many can be whole
        self._now = Clock(self.shard.newest_use())

    @property
    def is_leader(self) -> bool:
        return self.settings.index == 0

    def run(self, listeners: Sequence[socket.socket]) -> None:
        """Serve until `end`. Raises Renumbered behind a move; Fatal; and OSError where the files cannot be written."""
        for listener in listeners:
            self._loop.listen(listener)
        try:
            if self._is_settling:
                self._settling.enter_context(runtime.phase("waiting for the first checkpoint of all servers"))
            if self.is_leader and self.shard.job != self._job:
                self.add({"job": self._job})
            if self.is_leader and self.shard.sequence:
                self.add({"moving": 0})  # what its former process led has ended with it
            if not self.is_leader:
                self._seek_leader()
            elif self._is_settling:
                self.add({"checkpoint": self.shard.version})
            else:
                self._saving.complete_again(self._entries)
            del self._entries[: -_KEPT if self.settings.servers > 1 else None]
            look_at = 0.0
            while not self._has_ended and not self.shard.placed:
                self._loop.wait(_EVERY)
                self._take_leader()
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + _EVERY
                    self._look()
                self._look_at_others()
            self._say_last()
            if self.shard.placed and not self._has_ended:
                self._go_on()
        except LostDraft as error:
            raise Fatal(f"{error}: pushes are lost, so the training must begin from a checkpoint") from error
        finally:
            self._close()

    def end(self) -> None:
        """Have `run` return. For any thread, and for a signal's handler."""
        self._has_ended = True
        self.wake()

    def leave(self) -> None:
        """End once the others have this server's rows; at once where all of them end, or at the second call. For a signal's handler."""
        if self.is_leader or self._is_leaving or self._is_leader_ending:
            self.end()
        self._is_leaving = True
        self.wake()

    def wake(self) -> None:
        self._loop.wake()

    # -- the beginning --

    def _restored(self) -> Shard:
        index, servers, directory = self.settings.index, self.settings.servers, self.settings.directory
        if not directory:
            return self._initial()
        self._journal = Journal(journal_folder(directory, index, servers), _warn)
        if self.settings.initial and not manifests(directory):  # nothing was pushed before the first checkpoint
            self._journal.clear()
        shard, self._is_settling = restore(directory, index, servers, _warn, self._snapshot_again)
        if shard.definition is None and self.settings.initial:
            shard, self._is_settling = self._initial(), True
        if self._is_settling:
            self._journal.clear()
        elif self.is_leader:
            self._entries = self._logged_entries()
        self._journal.begin(shard.sequence)
        return shard

    def _arrived(self, shard: Shard) -> Shard:
        """Begin with a share that came by a move. Pushes wait for its first checkpoint."""
        settings = self.settings
        if settings.directory:
            self._journal = Journal(journal_folder(settings.directory, settings.index, settings.servers), _warn)
            self._journal.clear()
            self._journal.begin(shard.sequence)
            self._is_settling = True
        return shard

    def _end_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _initial(self) -> Shard:
        index, servers, initial = self.settings.index, self.settings.servers, self.settings.initial
        return newest_former(initial, index, servers).load(index, servers) if initial else Shard(index, servers)

    def _snapshot_again(self, shard: Shard) -> None:
        """Write a checkpoint that was asked for before this process began, where it is not there yet."""
        if all(manifest.sequence != shard.sequence for manifest in manifests(self.settings.directory)):
            self._begin_snapshot(shard)

    # -- the loop --

    def _look(self) -> None:
        self._loop.drop_strangers()
        memories = [table.memory() for table in self.shard.tables.values()]
        rows, total = sum(memory.rows for memory in memories), sum(memory.total for memory in memories)
        runtime.metrics(
            ps_version=self.shard.version, ps_rows=rows, ps_bytes=total, ps_bytes_per_row=total / rows if rows else 0.0
        )
        self._evict()
        is_long = self._journal is not None and self._journal.size > max(LOG_LIMIT, 2 * total)
        if is_long and self.is_leader and not self._saving.is_under_way:
            self.add({"checkpoint": self.shard.version})

    def _evict(self) -> None:
        """Remove the rows that were not used for as long as their tables say. Each server does so by itself, and logs it."""
        if self.shard.definition is None or self._is_settling or self._moves.is_under_way:
            return
        for arrays in self.shard.due_evictions(self._now()):
            self._log({"op": "evict", "sequence": self.shard.sequence}, arrays)
            self.shard.evict(arrays)

    def _hear(self, peer: Peer, message: Message) -> None:
        if not peer.role:
            self._admit(peer, message)
        elif peer is self.leader:
            self._hear_leader(message)
        else:
            self._answer(peer, message)

    def _lose(self, peer: Peer) -> None:
        self._moves.lose(peer)
        self._views.lose(peer)
        if peer is self.leader:
            self.leader = None
            if not self.shard.placed:  # else it has gone on, and so does this server
                self._moves.end()  # server 0 begins another one
                self._seek_leader()

    def peers(self, role: str) -> list[Peer]:
        return self._loop.peers(role)

    def tell(self, peer: Peer, header: Plain, arrays: Arrays | None = None) -> None:
        self._loop.tell(peer, header, arrays)

    # -- who is there --

    def _admit(self, peer: Peer, message: Message) -> None:
        header, settings = message.header, self.settings
        if message.op != "hello" or not hmac.compare_digest(
            str(header.get("token", "")).encode(errors="surrogatepass"), settings.token.encode()
        ):
            self._loop.refuse(peer, "the token is not this job's")
            return
        task, attempt, role, own = header.get("task"), header.get("attempt"), header.get("role"), header.get("own", -1)
        if type(task) is not str or type(attempt) is not int or type(own) is not int or role not in _ROLES:
            raise Malformed("no hello")
        if task.startswith(FORMER) or (role == "server" and own < 1):
            raise Malformed(f"a task {task!r}, server {own}")
        is_newcomer = role == "server" and own >= settings.servers
        asks = role == "worker" and self.is_leader and header.get("servers") == 0  # how many there are
        present = (settings.index, settings.servers)
        if (header.get("index"), header.get("servers")) != present and not is_newcomer and not asks:
            self._loop.refuse(
                peer,
                f"this is server {settings.index} of {settings.servers}, and you look for server {header.get('index')} of"
                f" {header.get('servers')}: both must have the same servers in the same order",
                index=settings.index,
                **({"kind": MOVED, "servers": settings.servers} if header.get("index") == settings.index else {}),
            )
            return
        if self.shard.job == self._job and attempt < self.shard.attempts.get(task, 0):
            self._loop.refuse(peer, f"attempt {attempt} of {task} is not the newest, {self.shard.attempts[task]}")
            return
        peer.role, peer.task, peer.attempt, peer.index = "newcomer" if is_newcomer else role, task, attempt, own
        self._moves.is_due |= is_newcomer
        self._leader_addresses = message.texts("leader") or self._leader_addresses
        peer.addresses = message.texts("addresses")
        peer.connection.open_limits()
        if role == "worker" and self.is_leader and attempt > self.shard.attempts.get(task, 0):
            self.add({"attempt": [task, attempt]})
        is_defined = self.shard.definition is not None
        self._loop.send(
            peer, {"op": "answer", "version": self.shard.version, "is_defined": is_defined, "servers": settings.servers}
        )

    # -- messages of workers --

    def _answer(self, peer: Peer, message: Message) -> None:
        if not self._is_ready(message):
            peer.waiting = [message]
            return
        if message.op == "pull" and peer.role == "worker" and self._views.holds(peer, message):
            return
        try:
            act, roles = _OPS.get(message.op, (None, ()))
            if act is None or peer.role not in roles:
                raise BadPush(f"a message {message.op!r} of a {peer.role}")
            answer, arrays = act(self, peer, message)
        except (BadPush, BadIds, BadDefinition) as error:
            kind = NOT_FINITE if isinstance(error, NotFinite) else BAD
            if isinstance(error, NoMemory) and self._moves.make_room():
                kind = AGAIN
            answer, arrays = {"error": str(error), "kind": kind}, {}
        if answer is not None:
            self._loop.send(peer, {"op": "answer", **answer}, arrays)

    def _is_ready(self, message: Message) -> bool:
        """Tell whether a message can be served now, and need not wait for a step of the order."""
        op, shard = message.op, self.shard
        if shard.placed:  # it is asked again in the next placement
            return False
        if shard.job != self._job and op != "status":  # server 0 has yet to tell that the former job is over
            return False
        if op in ("draft", "commit", "define") and (self._is_settling or self._moves.is_behind):
            return False
        if op == "take":
            return self._moves.is_sending(message.whole("move"))
        if op == "placement":
            return len(self.peers("follower")) == self.settings.servers - 1
        if op in ("pull", "draft", "seed"):
            if shard.definition is None and not self.is_leader:
                return False
            return op != "pull" or self.is_leader or shard.version >= message.whole("at_least")
        return True

    def _retry_waiting(self) -> None:
        for peer in self._loop.peers():
            self._loop.guard(peer, self._retry)

    def _retry(self, peer: Peer) -> None:
        if peer.waiting and self._is_ready(peer.waiting[0]):
            self._answer(peer, peer.waiting.pop())

    def answer(self, peer: Peer, message: Message) -> None:
        """Answer a message that has waited."""
        self._loop.guard(peer, functools.partial(self._answer, message=message))

    def _holds(self, peer: Peer, message: Message) -> tuple[None, Arrays]:
        self._views.take_hold(peer.index, str(message.header.get("view")), bool(message.header.get("is_lost")))
        return None, {}

    def _define(self, peer: Peer, message: Message) -> tuple[Plain, Arrays]:
        self._lead("defines")
        proposed = definition_of(message.header.get("definition"))
        if self.shard.definition is not None and self.shard.is_inherited:
            if conflict := self.shard.definition.conflict(proposed):
                raise BadDefinition(f"their checkpoint is of another model or optimizer: {conflict} now")
            self.add({"definition": proposed.to_plain()})
            return {"version": self.shard.version}, {}
        if self.shard.definition is not None:
            if difference := self.shard.definition.difference(proposed):
                raise BadDefinition(f"the servers have another definition: {difference}")
            return {"version": self.shard.version}, {}
        values = values_of(message.arrays)
        trial = Shard(self.settings.index, self.settings.servers)
        trial.define(proposed, values)
        self._define_all(proposed.to_plain(), values)
        return {"version": self.shard.version}, {}

    def _define_all(self, plain: Plain, values: Arrays) -> None:
        header = {"op": "define", "definition": plain}
        self._log(header, values)
        self.shard.define(definition_of(plain), values)
        for follower in self.peers("follower"):
            self.tell(follower, header, values)
        self._retry_waiting()

    def _pull(self, peer: Peer, message: Message) -> tuple[Plain, Arrays]:
        if self.shard.definition is None:
            raise BadPush("nothing is defined yet: call define first")
        if message.whole("at_least") > self.shard.version:
            raise BadPush(
                f"version {message.header['at_least']} is wanted, and the newest is {self.shard.version}: pushes were lost"
            )
        names = message.header.get("dense")
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise Malformed("the names of a pull are a list of texts")
        return {"version": self.shard.version}, self._pulled(names, message, message.arrays)

    def _pulled(self, names: list[str] | None, message: Message, ids: Arrays) -> Arrays:
        pulled = self.shard.pull(names, ids, self._now())
        return {name: array.astype("f2") for name, array in pulled.items()} if message.header.get("half") else pulled

    def _draft(self, peer: Peer, message: Message) -> tuple[Plain, Arrays]:
        header = message.header
        name = (peer.task, peer.attempt, message.whole("step"))
        rate = header.get("rate")
        if rate is not None and not isinstance(rate, (int, float)):
            raise Malformed("the rate of a push is a number")
        draft = Draft(name, message.whole("base"), message.arrays, rate)
        is_new = name not in self.shard.drafts and not self.shard.is_late(name)
        self.shard.hold(draft)
        if is_new:
            self._log(draft_header(draft), draft.arrays)
        answer: Plain = {}
        pulled: Arrays = {}
        if header.get("is_last") and self.settings.servers == 1:
            answer = self._commit(peer, message)[0]
            pulled = self._pulled(None, message, {}) if header.get("is_pull") else {}
        if name in self.shard.drafts and is_new:
            draft.arrays = owned_arrays(draft.arrays)
        return answer, pulled

    def _commit(self, peer: Peer, message: Message) -> tuple[Plain, Arrays]:
        self._lead("orders pushes")
        decision = decide(self.shard, (peer.task, peer.attempt, message.whole("step")))
        for entry in decision.entries:
            self.add(entry)
        return {"version": self.shard.version, "why": decision.why}, {}

    def _flush_pushes(self, peer: Peer, message: Message) -> tuple[Plain, Arrays]:
        self._lead("orders pushes")
        for entry in of_all_waiting(self.shard):
            self.add(entry)
        return {"version": self.shard.version}, {}

    def _checkpoint(self, peer: Peer, message: Message) -> tuple[Plain, Arrays]:
        self._lead("begins checkpoints")
        if not self.settings.directory:
            raise BadPush("the servers were started without a directory for checkpoints")
        if self.shard.definition is None:
            raise BadPush("nothing is defined yet: call define first")
        if self.shard.completed != self.shard.version and not self._saving.is_writing(self.shard.version):
            self.add({"checkpoint": self.shard.version})
        return {"version": self.shard.version}, {}

    def _ids(self, peer: Peer, message: Message) -> tuple[Plain, Arrays]:
        table = str(message.header.get("table"))
        return {"version": self.shard.version}, {IDS + table: self.shard.ids_of(table)}

    def _seed(self, peer: Peer, message: Message) -> tuple[Plain, Arrays]:
        if self.shard.definition is None:
            raise BadPush("nothing is defined yet: call define first")
        if not self.shard.version:  # else another worker has done it, and rows were trained since
            self.shard.check_seed(message.arrays)
            now = int(self._now())
            self._log({"op": "seed", "time": now}, message.arrays)
            self.shard.seed(message.arrays, now)
        return {"version": self.shard.version}, {}

    def _definition(self, peer: Peer, message: Message) -> tuple[Plain, Arrays]:
        if self.shard.definition is None:
            raise BadPush("the servers hold nothing")
        return {"version": self.shard.version, "definition": self.shard.definition.to_plain()}, {}

    def _status(self, peer: Peer, message: Message) -> tuple[Plain, Arrays]:
        return {**self.shard.figures(), "directory": self.settings.directory, "unsaved": self._saving.unsaved}, {}

    def _lead(self, does: str) -> None:
        if not self.is_leader:
            raise BadPush(f"server 0 {does}, and this is server {self.settings.index}")

    # -- the order --

    def add(self, entry: Entry) -> None:
        """Make the next entry of the order, on server 0; none behind the last one of this placement."""
        if self.shard.placed:
            return
        entry = {"op": "entry", "sequence": self.shard.sequence + 1, "time": int(self._now()), **entry}
        self._handle(entry)

    def _log(self, header: Plain, arrays: Arrays | None = None) -> None:
        """Keep what changes the state, and send it to whoever will own a part of it."""
        if self._journal is not None:
            self._journal.append(header, arrays)
        self._moves.log(header, arrays or {})

    def _handle(self, entry: Entry) -> None:
        self._log(entry)
        if self.is_leader and self.settings.servers > 1:
            self._entries.append(entry)
            if len(self._entries) > 2 * _KEPT:
                del self._entries[:_KEPT]
            for follower in self.peers("follower"):
                self.tell(follower, entry)
        self.shard.handle(entry)
        if "checkpoint" in entry and self.settings.directory:
            assert self._journal is not None
            self._journal.begin(self.shard.sequence)
            self._begin_snapshot(self.shard)
        if "moving" in entry:
            self._moves.begin(entry)
        if "complete" in entry:
            self._saving.complete(entry)
            self._completed()
        if "view" in entry:
            self._views.answer(entry["view"])
        self._retry_waiting()

    def _completed(self) -> None:
        """Forget what the last two checkpoints make needless."""
        self._is_settling = False
        self._settling.close()
        self.shard.initial = {}
        directory, settings = self.settings.directory, self.settings
        known = sound_manifests(directory, settings.servers)
        if len(known) > 1 and self._journal is not None:
            self._journal.forget(known[1].sequence)
        assert self.shard.definition is not None
        updates = self.shard.definition.updates
        remove_beyond(directory, updates.keep_checkpoints or (0 if updates.checkpoint_steps else _KEPT_UNASKED))
        if self.is_leader:
            for name in os.listdir(os.path.join(directory, "journal")):
                if not name.endswith(f"-of-{settings.servers}"):
                    shutil.rmtree(os.path.join(directory, "journal", name), ignore_errors=True)

    # -- checkpoints --

    def _begin_snapshot(self, shard: Shard) -> None:
        descriptor = self._saving.begin(shard)
        self._loop.watch(descriptor, lambda _: self._saved(descriptor))

    def _saved(self, descriptor: int) -> None:
        """Take in the end of a thread that wrote a share."""
        self._loop.unwatch(descriptor)
        if not (fault := self._saving.take_written(descriptor)):
            return
        if self._is_settling:
            raise Fatal(f"{fault}; nothing can be pushed without it")
        _warn(fault)

    # -- server 0 and the others --

    def _follow(self, peer: Peer, message: Message) -> tuple[None, Arrays]:
        """Begin to tell another server the entries from `after` on."""
        self._lead("tells the order")
        after = message.whole("after")
        entries = self._entries_behind(after)
        first = entries[0]["sequence"] if entries else self.shard.sequence + 1
        if after > self.shard.sequence or after + 1 < first:
            raise BadPush(
                f"server 0 has the order from {first} to {self.shard.sequence}, and you have it up to {after}"
            )
        is_defined = bool(message.header.get("is_defined"))
        definition = self.shard.definition
        if definition is not None and not is_defined and definition.dense and not self.shard.initial:
            raise BadPush("what you had before the newest checkpoint is lost")
        for former in [known for known in self.peers("follower") if known.index == peer.index]:
            self._loop.drop(former)  # its end was not noticed yet
        peer.role = "follower"
        if self.shard.definition is not None and not is_defined:
            header = {"op": "define", "definition": self.shard.definition.to_plain()}
            self._loop.send(peer, header, self.shard.initial)
        for entry in entries:
            self._loop.send(peer, entry)
        self._views.give_up()  # its former process may have held one
        self._retry_waiting()
        return None, {}

    def _logged_entries(self) -> list[Entry]:
        records = records_behind(self._journal.folder, 0) if self._journal is not None else ()
        return [record.header for record in records if record.header["op"] == "entry"]

    def _entries_behind(self, after: int) -> list[Entry]:
        is_old = self._journal is not None and any(entry["sequence"] > after + 1 for entry in self._entries[:1])
        return [entry for entry in (self._logged_entries() if is_old else self._entries) if entry["sequence"] > after]

    def _share_message(self, peer: Peer, message: Message) -> tuple[None, Arrays]:
        if peer.role == "follower":
            self._saving.take_share(message.header)
        return None, {}

    def _seek_leader(self) -> None:
        """Connect to server 0, in a thread."""
        threading.Thread(target=self._reach_leader, name="to-server-0", daemon=True).start()

    def _reach_leader(self) -> None:
        with runtime.phase("waiting for server 0"):
            reached = seek_leader(self.settings, lambda: self._leader_addresses, lambda: self._has_ended)
        if isinstance(reached, int):
            self._renumbered = reached
        elif reached is not None:
            self._reached.append(reached)
        self.wake()

    def _take_leader(self) -> None:
        while self._reached:
            peer = Peer(self._reached.pop(), time.monotonic(), "leader")
            self.leader, self._is_leader_ending = peer, False
            self._loop.add(peer)
            is_defined = self.shard.definition is not None
            follow = {"op": "follow", "after": self.shard.sequence, "is_defined": is_defined}
            self.tell(peer, follow)
            self._saving.report()
            self._is_leave_asked = False

    def _hear_leader(self, message: Message) -> None:
        header = message.header
        if message.op in ("last", "stay"):
            self._is_leader_ending |= message.op == "last"
            self._has_ended |= self._is_leaving
        elif "error" in header:
            raise Fatal(f"{header['error']}: what server 0 has and what this one has do not belong together")
        elif message.op == "define":
            if self.shard.definition is None:
                self._log({"op": "define", "definition": header["definition"]}, message.arrays)
                self.shard.define(definition_of(header["definition"]), message.arrays)
                self._retry_waiting()
        elif header["sequence"] > self.shard.sequence:
            self._handle(header)

    # -- another number of servers --

    def _placement(self, peer: Peer, message: Message) -> tuple[Plain, Arrays]:
        self._lead("knows where the others are")
        return {"servers": self.settings.servers, "addresses": self._moves.addresses()}, {}

    def _note(self, servers: int) -> None:
        note_servers(self.settings.directory, self.settings.index, self._job, self.settings.told_servers, servers)

    def _leave(self, peer: Peer, message: Message) -> tuple[None, Arrays]:
        peer.leaving_since, self._moves.is_due = time.monotonic(), True
        return None, {}

    def _take(self, peer: Peer, message: Message) -> tuple[None, Arrays]:
        """Give a connection over to whoever sends what its other end will own."""
        self._moves.send_to(peer, message.whole("move"), message.whole("index"))
        self._loop.give_away(peer)
        return None, {}

    def _moved(self, peer: Peer, message: Message) -> tuple[None, Arrays]:
        message.whole("move")
        self._moves.take_report(peer.index, message.header)
        return None, {}

    def _look_at_others(self) -> None:
        """Go on with a move, and with this server's own leaving."""
        if self._renumbered:
            raise Renumbered(self._renumbered)
        if self.leader is not None:
            self._leader_seen = time.monotonic()
            if self._is_leaving and not self._is_leave_asked:
                self._is_leave_asked = True
                print(f"ps: server {self.settings.index} asks the others to take its rows", flush=True)
                self.tell(self.leader, {"op": "leave"})
        elif self._is_leaving and time.monotonic() > self._leader_seen + _LAST:
            self._has_ended = True
        is_ready = self.shard.version > 0 and self.shard.definition is not None and not self._is_settling
        self._moves.look(is_ready)
        if self._moves.has_come_up():
            self._retry_waiting()

    def _say_last(self) -> None:
        """Tell the other servers whether the job ends, or the placement alone."""
        for peer in self.peers("follower"):
            with contextlib.suppress(Closed, OSError):
                peer.connection.socket.settimeout(_LAST)
                if self._has_ended:
                    peer.connection.send({"op": "last"})
                peer.connection.flush()

    def _go_on(self) -> None:
        """Leave the present placement. Raises Renumbered where the next one has this server."""
        settings, servers = self.settings, self.shard.placed
        shard, why = self._moves.arrived()
        self._end_journal()
        if settings.index >= servers:
            self._note(0)
            print(f"ps: server {settings.index} has given its rows to the other {servers}", flush=True)
        elif shard is None and not settings.directory:
            raise Fatal(f"the last part of the rows that were moved here is missing ({why})")
        else:
            if shard is None:
                print(f"ps: server {settings.index} reads its rows from the files ({why})", flush=True)
            raise Renumbered(servers, shard)

    def _close(self) -> None:
        self._has_ended = True
        self._settling.close()
        self._moves.end()
        self._loop.close()
        for connection in self._reached:
            connection.close()
        self._saving.close()
        self._end_journal()
        # A placement's rows end with it, and not when memory is collected.
        self.shard = Shard(self.settings.index, self.settings.servers)


_WORKER, _SERVER = ("worker",), ("server", "follower")
_OPS: dict[str, tuple[Any, tuple[str, ...]]] = {  # by op: the method, and the roles that may ask for it
    "define": (Server._define, _WORKER),
    "pull": (Server._pull, _WORKER),
    "draft": (Server._draft, _WORKER),
    "commit": (Server._commit, _WORKER),
    "flush": (Server._flush_pushes, _WORKER),
    "checkpoint": (Server._checkpoint, _WORKER),
    "ids": (Server._ids, _WORKER),
    "seed": (Server._seed, _WORKER),
    "definition": (Server._definition, _WORKER),
    "status": (Server._status, _WORKER),
    "follow": (Server._follow, _SERVER),
    "saved": (Server._share_message, _SERVER),
    "placement": (Server._placement, _WORKER),
    "leave": (Server._leave, _SERVER),
    "take": (Server._take, ("heir",)),
    "moved": (Server._moved, (*_SERVER, "newcomer")),
    "holds": (Server._holds, _SERVER),
}


def _warn(text: str) -> None:
    print(f"ps: {text}", file=sys.stderr, flush=True)
