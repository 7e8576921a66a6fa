"""The book of a master's containers: what it has asked for, what has become of each, and what the engine is to do about that; pure.

An engine's side in the master (`engines.contract.MasterSide`) translates: it creates, starts and deletes what the book says, and shows what
it sees, in any order, more than once, late, or left by an earlier master. It decides nothing.

    ask, release    what the master wants: the whole set of asks that are not granted, and the containers to take back
    see             what the engine sees of containers
    tick            time has passed

Each returns the `Work` of the engine, and the changes for the master. A key, (task, serial), is asked for once in a job's life. A container
also has an id of its engine's own: of two with the same key the one that was seen first is kept, and any other is deleted.

    create ──> pending ──> placed ── start ──> running ──> gone
     └ again later, where the engine denies it for now

An engine whose containers start by themselves shows none as placed. Those of a gang that is *gathered* are not started, and the master
hears nothing of them, until the gang begins: when all that was asked for is there, or what it needs and nothing more for `settled` seconds.
Then they are reported in one change, so the size of the gang depends on nothing else. A gang of which a part is there for `gang_timeout`
seconds without the rest of its need is reported as overdue; the master gives that part back.

A container that is to go and whose end is not seen in time is written off: its task goes on elsewhere. It is deleted whenever it is seen
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.machine.stimuli import (
    Change,
    ContainerExited,
    ContainerLost,
    GangGranted,
    GangOverdue,
    Granted,
    Key,
    Refused,
)
from trainmaster.core.plain import Plain

PENDING, PLACED, RUNNING, GOING, GONE = "pending", "placed", "running", "going", "gone"
_ORDER = ("", PENDING, PLACED, RUNNING, GOING, GONE)
FIRST_DELAY, LONGEST_DELAY = 1.0, 15.0  # s until a create that was denied is tried again: twice as long each time

End = ContainerExited | ContainerLost


@attrs.frozen(slots=True, eq=False, repr=False)
class Request(Plain):
    """One container that a master asks for. Memory is what the container gets (the program's plus the overhead), in bytes."""

    task: str
    serial: int
    role: str
    index: int
    memory: int
    cores: float
    gpus: int = 0
    priority: int = 0  # of the role; higher first
    gang: str = ""  # a gang begins with what is there when its need is met, and with nothing before
    least: int = 0  # of this role in this gang: enough to begin with (replicas.min); 0: all of them
    nodes: Mapping[str, Any] = attrs.field(factory=dict)  # labels, exclude
    program_memory: int = 0  # the program's own part of `memory`, bytes
    extended: Mapping[str, int] = attrs.field(factory=dict)  # other resources that the engine counts, by its names
    hosts: tuple[str, ...] = ()  # where most of the task's data is, the most first: a wish
    growth: bool = False  # the job goes on without it
    minimum: int = 0  # containers of its role that the job cannot go on without, where it can go on without the others; 0: it cannot
    job_priority: int = 0  # of the job, also part of `priority`; higher first

    @property
    def key(self) -> Key:
        return self.task, self.serial


def is_growth(request: Request) -> bool:
    """Tell whether the request's gang can begin without it, or its job go on."""
    return request.growth or (bool(request.gang) and 0 < request.least <= request.index)


@attrs.frozen(slots=True, eq=False, repr=False)
class Habits(Plain):
    """The ways of an engine that the book must know.

    `settled`: s without another grant, after which an elastic gang begins with what it needs; 0: the engine grants at once what it will
    grant of a gang, so all gangs are gathered. `gang_timeout`: s; None: for ever. `write_off`: s beyond the time that a container may take
    to go until it is written off; None: the engine always shows its end. `closing`: s that ends are waited for when the job is over.
    """

    settled: float = 0.0
    gang_timeout: float | None = None
    write_off: float | None = None
    closing: float = 0.0


@attrs.frozen(slots=True, eq=False, repr=False)
class Seen(Plain):
    """A container as its engine sees it. `id`: the engine's own name of this one alone. `name`: for people, where that is another."""

    key: Key
    phase: str
    id: str
    node: str = ""
    devices: tuple[str, ...] = ()
    name: str = ""
    within: float = 0.0  # s that it may take to be gone, where it is going
    end: End | None = None  # where it is gone


@attrs.frozen(slots=True, eq=False, repr=False)
class Deletion(Plain):
    """A container to delete, or an ask to withdraw, whose `id` is "" then. `by_force`: its engine was asked before, and gives no end."""

    key: Key
    id: str = ""
    by_force: bool = False


@attrs.define(slots=True)
class Work:
    """The orders to an engine, and the changes for its master, in order. An engine shows the end of all that it deletes."""

    create: list[Request] = attrs.field(factory=list)
    start: list[Request] = attrs.field(factory=list)
    delete: list[Deletion] = attrs.field(factory=list)
    changes: list[Change] = attrs.field(factory=list)


@attrs.define(slots=True, eq=False)
class Entry:
    """A container, or the ask for one."""

    request: Request | None = None  # None: an earlier master asked for it
    phase: str = ""  # "": it is to be created, or is being created
    id: str = ""
    name: str = ""
    node: str = ""
    devices: tuple[str, ...] = ()
    is_reported: bool = False  # the master has heard that it is granted
    is_returned: bool = False  # it is to be deleted
    is_started: bool = False

    def granted(self, key: Key) -> Granted:
        return Granted(*key, self.name or self.id, self.node, self.devices)


@attrs.define(slots=True, eq=False)
class Gang:
    """The members of a gang that the master asks for, by what is known of them."""

    needed: set[Key] = attrs.field(factory=set)  # not there, and the gang cannot begin without
    growth: set[Key] = attrs.field(factory=set)  # not there, and it can
    ready: dict[Key, None] = attrs.field(factory=dict)  # there, until the gang begins
    begun: dict[Key, None] = attrs.field(factory=dict)  # it begins with these: they are reported once all run
    starting: set[Key] = attrs.field(factory=set)  # those of them that do not run yet
    is_gathered: bool = False
    since: float | None = None  # when the first was there of a gang that cannot begin
    latest: float = 0.0  # when the latest was

    def drop(self, key: Key) -> None:
        for members in (self.needed, self.growth, self.starting):
            members.discard(key)
        for gathered in (self.ready, self.begun):
            gathered.pop(key, None)

    def __bool__(self) -> bool:
        return bool(self.needed or self.growth or self.ready or self.begun)


class Book:
    """The containers of one master. Times are in s, of a clock that never falls."""

    def __init__(self, habits: Habits = Habits()) -> None:
        self.habits = habits
        self._is_blind = False
        self._entries: dict[Key, Entry] = {}
        self._asked: dict[Key, None] = {}  # what the master asks for, and has not heard of
        self._ends: dict[Key, End] = {}
        self._refused: dict[Key, str] = {}
        self._gone: set[str] = set()  # ids
        self._gangs: dict[str, Gang] = {}
        self._due: dict[Key, float] = {}  # when these are created
        self._going: dict[Key, float] = {}  # when these are to be gone at the latest, before they are written off
        self._denials: dict[str, tuple[int, float]] = {}  # role -> denials in a row, until when none of it is created
        self._vanished: Counter[str] = Counter()  # task -> containers in a row that were gone before they had a place
        self._has_asked = False

    # -- what the master wants --

    def open(self, seen: Iterable[Seen], keys_held: Collection[Key], now: float, lost: str = "agent-lost") -> Work:
        """Take over what an engine has of the job. `keys_held`: what the master's log says it was granted. The fate of these is reported at
        once; one that the engine does not know has ended while there was no master, for the reason `lost`.

        The other containers wait for the first asks. One that is placed is deleted: only the master that it was placed for could start it.
        """
        work = Work()
        order = (GONE, RUNNING)  # of two with one key, the one that runs is kept
        for sight in sorted(seen, key=lambda sight: order.index(sight.phase) if sight.phase in order else len(order)):
            if sight.phase == GONE:
                self._gone.add(sight.id)
                self._ends.setdefault(sight.key, sight.end or ContainerExited(*sight.key))
            elif sight.id in self._gone:
                continue
            elif sight.phase == PLACED or sight.key in self._entries:
                work.delete.append(Deletion(sight.key, sight.id))
            else:
                self._entries[sight.key] = Entry()
                self._note(sight, self._entries[sight.key], now)
        for key in sorted(keys_held):
            if (entry := self._entries.get(key)) is not None:
                entry.is_reported = True
                work.changes.append(entry.granted(key))
            else:
                work.changes.append(self._ends.setdefault(key, ContainerExited(*key, None, lost)))
        return work

    def ask(self, requests: Sequence[Request], now: float) -> Work:
        """Take the whole set of asks that are not granted; what is no longer in it is withdrawn.

        An ask that was answered before is answered by the fate of its container.
        """
        work, by_key = Work(), {request.key: request for request in requests}
        for key in [key for key in self._asked if key not in by_key]:
            self._give_back(key, work)
        new = [request for key, request in by_key.items() if key not in self._asked]
        for request in new:
            if request.gang and (is_growth(request) or not self.habits.settled):
                self._gangs.setdefault(request.gang, Gang()).is_gathered = True
        for request in new:
            self._want(request.key, request, now, work)
        if not self._has_asked:
            self._has_asked = True
            for key, entry in list(self._entries.items()):
                if not (key in self._asked or entry.is_reported):
                    self._give_back(key, work)
        self._begin_gangs({request.gang for request in requests}, now, work)
        return work

    def release(self, key: Key) -> Work:
        """Take a container, or an ask for one, back. Its end is reported once it is gone."""
        work = Work()
        if key in self._entries:
            self._give_back(key, work)
        if key not in self._entries:
            work.changes.append(self._ends.get(key) or ContainerExited(*key, None, "not-needed"))
        return work

    def close(self) -> Work:
        """Give everything back."""
        work = Work()
        for key in list(self._entries):
            self._give_back(key, work)
        return work

    def _want(self, key: Key, request: Request, now: float, work: Work) -> None:
        entry = self._entries.get(key)
        if entry is None and key in self._ends:
            work.changes.append(self._ends[key])
        elif key in self._refused:
            work.changes.append(Refused(*key, self._refused[key]))
        elif entry is None:
            self._entries[key] = Entry(request)
            self._join(key, request)
            self._create(key, request, now, work)
        elif not entry.is_returned:
            entry.request = request
            if entry.is_reported:
                work.changes.append(entry.granted(key))
                return
            self._join(key, request)
            self._place(key, entry, now, work)

    def _create(self, key: Key, request: Request, now: float, work: Work) -> None:
        vanished = self._vanished[request.task]  # whoever deletes this task's containers does it again
        due = now + min(LONGEST_DELAY, 2.0 ** (vanished - 2)) if vanished else now
        due = max(due, self._denials.get(request.role, (0, 0.0))[1])
        if due > now:
            self._due[key] = due
        else:
            work.create.append(request)

    def _give_back(self, key: Key, work: Work) -> None:
        entry = self._entries[key]
        if entry.is_returned:
            return
        entry.is_returned = True
        self._leave(key, entry)
        if self._due.pop(key, None) is not None:
            del self._entries[key]  # it was never created
        else:
            work.delete.append(Deletion(key, entry.id))

    # -- what the engine sees --

    def see(self, seen: Iterable[Seen], now: float) -> Work:
        """Take what the engine sees. Containers of a gang that it grants at once must come in one call."""
        work, gangs = Work(), set[str]()
        for sight in seen:
            entry = self._entries.get(sight.key)
            if sight.id in self._gone:
                continue
            if sight.phase == GONE:
                self._gone |= {sight.id} - {""}  # "": an ask that was withdrawn
                if entry is not None and entry.id in ("", sight.id):
                    end = sight.end or ContainerExited(*sight.key, None, "not-needed")
                    gangs |= self._end(sight.key, entry, end, work)
            elif entry is None and not self._has_asked:
                self._entries[sight.key] = Entry()
                self._note(sight, self._entries[sight.key], now)
            elif entry is None or entry.id not in ("", sight.id):
                work.delete.append(Deletion(sight.key, sight.id))
            else:
                was_created = bool(entry.id)
                self._note(sight, entry, now)
                if entry.is_returned and not was_created:  # it was given back meanwhile
                    work.delete.append(Deletion(sight.key, sight.id))
                self._place(sight.key, entry, now, work)
                gangs |= {entry.request.gang} if entry.request is not None else set()
        self._begin_gangs(gangs, now, work)
        return work

    def deny(self, key: Key, now: float) -> Work:
        """Put a create off that failed for now, with the others of its role."""
        work = Work()
        if (entry := self._entries.get(key)) is None or entry.id or entry.request is None:
            return work
        if entry.is_returned:
            self._end(key, entry, ContainerExited(*key, None, "not-needed"), work)
            return work
        role = entry.request.role
        times, until = self._denials.get(role, (0, 0.0))
        if until <= now:
            times, until = times + 1, now + min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(times, 8))
            self._denials[role] = times, until
        self._due[key] = until
        return work

    def is_denied(self, role: str, now: float) -> bool:
        """Tell whether creates of a role are put off at this time."""
        return self._denials.get(role, (0, 0.0))[1] > now

    def refuse(self, key: Key, detail: str) -> Work:
        """Take the engine's word that it will never grant an ask, or never start its container; it is reported once."""
        work = Work()
        if (entry := self._entries.get(key)) is None or key in self._refused:
            return work
        if entry.is_returned and not entry.id:
            self._end(key, entry, ContainerExited(*key, None, "not-needed"), work)
            return work
        self._refused[key] = detail
        self._leave(key, entry)
        self._due.pop(key, None)
        if not entry.id:
            del self._entries[key]
        work.changes.append(Refused(*key, detail))
        return work

    def forget(self, now: float) -> Work:
        """Take that the engine has lost its memory: of asks, of deletions, and of containers that have not started."""
        work = Work()
        for key, entry in list(self._entries.items()):
            if entry.phase == PLACED:
                self._end(key, entry, ContainerExited(*key), work)
            elif entry.is_returned:
                work.delete.append(Deletion(key, entry.id))
                self._going.pop(key, None)
            elif not entry.phase and entry.request is not None and key not in self._due:
                work.create.append(entry.request)
        return work

    def _note(self, sight: Seen, entry: Entry, now: float) -> None:
        if entry.request is not None and not entry.id:
            self._denials.pop(entry.request.role, None)
            self._due.pop(sight.key, None)
        if _ORDER.index(sight.phase) >= _ORDER.index(entry.phase):  # else it comes late
            entry.phase = sight.phase
        entry.id, entry.name = sight.id, sight.name
        entry.node, entry.devices = sight.node or entry.node, sight.devices or entry.devices
        if sight.phase == GOING and self.habits.write_off is not None and sight.key not in self._going:
            self._going[sight.key] = now + sight.within + self.habits.write_off

    def _end(self, key: Key, entry: Entry, end: End, work: Work) -> set[str]:
        """Note the end of a container; return the gang that may begin now."""
        del self._entries[key]
        self._ends[key] = end
        self._going.pop(key, None)
        self._due.pop(key, None)
        if key in self._asked and not entry.node:
            self._vanished[key[0]] += 1
        self._leave(key, entry)
        work.changes.append(end)
        return set() if entry.request is None else {entry.request.gang}

    # -- gangs --

    def _join(self, key: Key, request: Request) -> None:
        self._asked[key] = None
        if request.gang:
            gang = self._gangs.setdefault(request.gang, Gang())
            (gang.growth if is_growth(request) else gang.needed).add(key)

    def _leave(self, key: Key, entry: Entry) -> None:
        self._asked.pop(key, None)
        if entry.request is not None and (gang := self._gangs.get(entry.request.gang)) is not None:
            gang.drop(key)

    def _place(self, key: Key, entry: Entry, now: float, work: Work) -> None:
        """Take that a container which is asked for has its place, or runs."""
        request = entry.request
        if request is None or key not in self._asked or entry.phase not in (PLACED, RUNNING):
            return
        self._vanished.pop(request.task, None)
        gang = self._gangs.get(request.gang) or Gang()
        if key in gang.needed or key in gang.growth:
            gang.drop(key)
            gang.latest = now
            gang.since = now if gang.since is None else gang.since
            if gang.is_gathered:
                gang.ready[key] = None
        if key in gang.starting and entry.phase == RUNNING:
            gang.starting.discard(key)
        elif key not in gang.ready and key not in gang.begun and self._runs(entry, work):
            work.changes.append(self._report(key))

    def _runs(self, entry: Entry, work: Work) -> bool:
        """Tell whether a container runs; have it started where it waits for that."""
        if entry.phase == PLACED and not entry.is_started and entry.request is not None:
            entry.is_started = True
            work.start.append(entry.request)
        return entry.phase == RUNNING

    def _report(self, key: Key) -> Granted:
        """Return the grant of a container that the master asked for, which it hears of now."""
        self._entries[key].is_reported = True
        del self._asked[key]
        return self._entries[key].granted(key)

    def _begin_gangs(self, names: Iterable[str], now: float, work: Work) -> None:
        for name in names:
            if (gang := self._gangs.get(name)) is None:
                continue
            self._begin(gang, now, work)
            if not gang.needed:
                gang.since = None
            if not gang:
                del self._gangs[name]

    def _begin(self, gang: Gang, now: float, work: Work) -> None:
        """Start what is there of a gang once it can begin, and report it once all of that runs."""
        is_settled = not gang.growth or now - gang.latest >= self.habits.settled
        if gang.ready and not gang.begun and not gang.needed and is_settled:
            gang.begun, gang.ready = gang.ready, {}
            gang.starting = {key for key in gang.begun if not self._runs(self._entries[key], work)}
        if gang.begun and not gang.starting:
            work.changes.append(GangGranted(tuple(map(self._report, gang.begun))))
            gang.begun = {}

    # -- time --

    def set_blind(self, is_blind: bool, now: float) -> None:
        """Note whether the engine sees its containers. While it does not, none is written off."""
        if self._is_blind and not is_blind and self.habits.write_off is not None:
            self._going = {key: max(until, now + self.habits.write_off) for key, until in self._going.items()}
        self._is_blind = is_blind

    def tick(self, now: float) -> Work:
        """Do what is due at `now`."""
        work = Work()
        for key in [key for key, due in self._due.items() if due <= now]:
            del self._due[key]
            if (request := self._entries[key].request) is not None:
                work.create.append(request)
        self._begin_gangs(list(self._gangs), now, work)
        for name, gang in self._gangs.items():
            if (
                gang.since is not None
                and self.habits.gang_timeout is not None
                and now - gang.since >= self.habits.gang_timeout
            ):
                gang.since = None
                work.changes.append(GangOverdue(name, self.habits.gang_timeout))
        for key in [] if self._is_blind else [key for key, until in self._going.items() if until <= now]:
            entry = self._entries[key]
            work.delete.append(Deletion(key, entry.id, by_force=True))
            self._end(key, entry, ContainerLost(*key, "node-lost", {"node": entry.node}), work)
        return work

    def next(self) -> float | None:
        """Return when `tick` has something to do, as far as time alone brings it."""
        times = [*self._due.values(), *([] if self._is_blind else self._going.values())]
        for gang in self._gangs.values():
            if gang.ready and not gang.begun and not gang.needed:
                times.append(gang.latest + self.habits.settled)
            if gang.since is not None and self.habits.gang_timeout is not None:
                times.append(gang.since + self.habits.gang_timeout)
        return min(times, default=None)

    # -- what there is --

    def asked(self) -> list[Request]:
        """Return the asks that the engine has not given a place."""
        entries = (self._entries[key] for key in self._asked)
        return [entry.request for entry in entries if entry.request is not None and entry.phase in ("", PENDING)]

    def wants(self, key: Key) -> bool:
        """Tell whether a container that is to be created is still wanted."""
        return (entry := self._entries.get(key)) is not None and not entry.is_returned

    def delayed(self) -> list[Request]:
        """Return the asks that wait until they are tried again."""
        return [request for key in self._due if (request := self._entries[key].request) is not None]

    def held(self) -> list[Key]:
        """Return what the master has heard of and not given back."""
        return [key for key, entry in self._entries.items() if entry.is_reported and not entry.is_returned]

    def is_reported(self, key: Key) -> bool:
        """Tell whether the master has heard of a container that is there."""
        return (entry := self._entries.get(key)) is not None and entry.is_reported

    @property
    def is_empty(self) -> bool:
        return not self._entries
