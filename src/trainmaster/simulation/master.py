"""The simulated master: the real `Drive` between a simulated disk, engine and network, dying at any point.

It turns as the real shell does: a batch in, events to the disk, a sync where one is a barrier, a look at the epoch, then the actions. A
crash may come between any two of these. A master that was replaced goes on until it looks at the epoch, and must do no harm before. Each
has a wall clock of its own, which may be wrong by an hour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainmaster.core.decide.drive import Drive, needs_barrier
from trainmaster.core.decide.plan import ends_something
from trainmaster.core.fold.changes import fold
from trainmaster.core.machine.actions import Action, Ask, CommitFor, Order, Release, Step
from trainmaster.core.machine.events import Event
from trainmaster.core.machine.state import ASKED, State, Task
from trainmaster.core.machine.stimuli import (
    Connected,
    Did,
    Disconnected,
    MasterStarted,
    Report,
    Stimulus,
    StorageLost,
    Submitted,
    Tick,
)
from trainmaster.core.spec.job import Job, uses
from trainmaster.simulation.agent import Agent
from trainmaster.simulation.engine import Engine
from trainmaster.simulation.network import RULES, Link
from trainmaster.simulation.world import World

FLUSH = 0.5  # s until notes are synced


class SimulatedMaster:
    """One master of one epoch. `submitted` is given while the log does not have it."""

    def __init__(
        self, world: World, engine: Engine, listing: dict[str, Any], submitted: Submitted | None, over: Callable[[], None], *,
        skew: float = 0.0, drive: type[Drive] = Drive,
    ) -> None:  # fmt: skip
        self.world, self.engine, self.listing = world, engine, listing
        self._over, self._skew = over, skew
        self.alive = True
        self.links: dict[tuple[str, int], Link] = {}
        self.epoch = world.disk.take_epoch()
        world.disk.seal()
        past = self._past = world.disk.read()
        self.drive = drive(fold(State(), past))
        self.inbox: list[Stimulus] = [MasterStarted(self.epoch, {str(event.epoch): event.n for event in past})]
        self.inbox += [submitted] if submitted is not None else []
        self.inbox += engine.open(self.epoch)
        self.dies_writing: Callable[[], Any] | None = None  # what kills it while it next writes several events
        self._written: list[Event] = []
        self._unwritten: list[Event] = []  # what could not be written once the storage was lost
        self._asked: list[tuple[str, int]] = []  # and neither granted nor withdrawn yet
        self._turning = False
        self._woken = -1.0
        self._doing: set[Action] = set()
        self._flushing = False
        self._heard: dict[tuple[str, int], int] = {}  # the newest report of each agent that is not acknowledged
        self._failing_since: float | None = None
        self._unwritable = False
        engine.tell = self.tell
        for table in self.state.shards.values():
            table.expect([(task.key, task.attempt) for task in self.state.tasks.values() if task.live])
        self.stir()

    @property
    def state(self) -> State:
        return self.drive.state

    @property
    def wrote(self) -> bool:
        """Whether it has come to write anything, rather than only to read."""
        return bool(self._written or self._unwritten)

    @property
    def log(self) -> list[Event]:
        """The job's events as this master knows them: what readers see, but for what it could not write."""
        return self._past + self._written + self._unwritten if self._unwritten else self.world.disk.read()

    # -- what comes in --

    def tell(self, *stimuli: Stimulus) -> None:
        if self.alive:
            self.inbox += stimuli
            self.stir()

    def stir(self) -> None:
        if not self._turning and self.alive:
            self._turning = True
            self.world.at(0.0005, self._turn)

    def accept(self, agent: Agent, link: Link) -> str:
        if agent.epoch > self.epoch:
            self._superseded()  # the storage tells, not the agent
            return "stale-epoch"
        if not self.state.admits(*agent.key):
            return "written-off"
        before = self.links.pop(agent.key, None)
        if before is not None:
            before.close()
        self.links[agent.key] = link
        self.tell(Connected(*agent.key, {"node": agent.container.node, "container": agent.container.name}))
        for table in self.state.shards.values():
            table.hold((agent.key[0], agent.attempt), agent.holds())
        return ""

    def hear(self, agent: Agent, report: dict[str, Any]) -> None:
        self.tell(Report(*agent.key, report["n"], report["attempt"], report["kind"], report["data"]))

    def closed(self, agent: Agent, link: Link) -> None:
        if self.links.get(agent.key) is link:
            del self.links[agent.key]
            self.tell(Disconnected(*agent.key))

    def lease(self, agent: Agent, name: str) -> int | None:
        """A shard's number, None for not now, -1 at the end."""
        table = self.state.shards.get(name)
        task = self.state.tasks[agent.key[0]]
        if not self.alive or table is None or task.attempt != agent.attempt or not task.live or task.doomed:
            return None
        if table.finished:
            return -1
        shards = table.lease((task.key, task.attempt), 1)
        return shards[0].number if shards else None

    # -- turns --

    def _turn(self) -> None:
        self._turning = False
        if not self.alive:
            return
        batch, self.inbox = self.inbox, []
        events, actions = self.drive.take(batch or [Tick()], self.world.now + self._skew)
        self._turning = True
        self._write(events, actions, batch)

    def _write(self, events: list[Event], actions: list[Action], batch: list[Stimulus]) -> None:
        if not self.alive:
            return
        if events and not self._unwritable and self.world.now < self.world.disk.full_until:
            if self._failing_since is None:
                self._failing_since = self.world.now
            if self.world.now - self._failing_since < (self.state.known_job.timeouts.storage or 1e18):
                self.world.at(1.0, self._write, events, actions, batch)
                return
            self._unwritable = True
            self.inbox.append(StorageLost("the disk is full"))
        self._failing_since = None
        if self._unwritable:
            if self._superseded():
                return
            self._unwritten += events
            self._act([action for action in actions if ends_something(action)])
            return
        if self.dies_writing is not None and len(events) > 1:
            self.world.disk.append(self.epoch, events[: self.world.rng.randrange(1, len(events))])
            self.dies_writing()
            return
        self.world.disk.append(self.epoch, events)
        self._written += events
        self._heard.update({(told.task, told.serial): told.n for told in batch if isinstance(told, Report)})
        if needs_barrier(events):
            self.world.at(self.world.rng.uniform(0.0005, 0.01), self._synced, actions)
        else:
            if (events or self._heard) and not self._flushing:
                self._flushing = True
                self.world.at(FLUSH, self._flush)
            self._act(actions)

    def _flush(self) -> None:
        self._flushing = False
        if self.alive and not self._superseded():
            self._sync()

    def _sync(self) -> None:
        """All that was appended is durable: agents need not keep what they told."""
        self.world.disk.sync(self.epoch)
        heard = [(link, number) for key, number in self._heard.items() if (link := self.links.get(key)) is not None]
        self._heard.clear()
        if heard:
            self.world.at(self.world.delay(RULES["frame"]), self._acknowledge, heard)

    def _acknowledge(self, heard: list[tuple[Link, int]]) -> None:
        for link, number in heard:
            if link.open:
                link.agent.acknowledged(number)

    def _synced(self, actions: list[Action]) -> None:
        if self.alive and not self._superseded():
            self._sync()
            self._act(actions)

    def _superseded(self) -> bool:
        """A later master has read past this one: it stops before acting."""
        self.alive = self.world.disk.epoch == self.epoch
        return not self.alive

    def _act(self, actions: list[Action]) -> None:
        self._ask_and_release(actions)
        done: list[Action] = []
        for action in actions:
            if isinstance(action, Order) and self._send(action):
                done.append(action)
            elif isinstance(action, Step | CommitFor) and action not in self._doing:
                self._doing.add(action)
                self.world.at(self.world.rng.uniform(0.0, 0.5), self._done, action)
        if done:
            self.inbox.append(Did(tuple(done)))
        self._turning = False
        if self.drive.closed:
            self._sync()  # a master that ends closes its log, which makes it durable
            self._over()
            return
        if self.inbox:
            self.stir()
        wake = self.drive.wake
        if wake is not None and (wake != self._woken or wake <= self.world.now + self._skew):
            self._woken = wake
            self.world.at(max(0.0, wake - self.world.now - self._skew), self.stir)

    def _ask_and_release(self, actions: list[Action]) -> None:
        asks = [action for action in actions if isinstance(action, Ask)]
        releases = [action for action in actions if isinstance(action, Release)]
        if not asks and not releases:
            return
        self.inbox.append(Did((*asks, *releases)))  # on record first: the engine's answer may be there at once
        withdrawn = {(release.task, release.serial) for release in releases}
        for key in withdrawn:
            self.engine.release(self.epoch, *key)
        tasks = self.state.tasks
        pending = [
            key
            for key in self._asked
            if tasks[key[0]].hold == ASKED and tasks[key[0]].serial == key[1] and key not in withdrawn
        ]
        self._asked = pending + [(ask.task, ask.serial) for ask in asks]
        self.engine.ask(self.epoch, self._asked)

    def _send(self, order: Order) -> bool:
        link = self.links.get((order.task, order.serial))
        if link is None or not link.open:
            return False
        link.send_down(link.agent.obey, self.epoch, order.verb, order.attempt, order.id, self._told(order))
        return True

    def _told(self, order: Order) -> dict[str, Any]:
        """What an order says beside its name."""
        job, task = self.state.known_job, self.state.tasks[order.task]
        if order.verb == "stop":
            return {"grace": job.roles[task.role].stop.grace}
        if order.verb == "prepare":
            return {"set": self.state.groups[task.group].set}
        if order.verb == "peer-finished":
            return {"limit": job.timeouts.finish or 600.0}
        if order.verb == "save":
            return {"id": order.id}
        return self._start(job, task) if order.verb == "start" else {}

    def _start(self, job: Job, task: Task) -> dict[str, Any]:
        told: dict[str, Any] = {}
        if task.whole:
            told["marks"] = self._marks  # it writes checkpoints
            if job.gang:
                told["generation"] = (task.group, self.state.groups[task.group].generation)
        if reads := [given.name for given in uses(job, task.role) if given.name in self.state.shards]:
            told["input"] = reads[0]
        return told

    def _marks(self) -> dict[str, Any]:
        return {name: table.marks() for name, table in self.state.shards.items()}

    def _done(self, action: Action) -> None:
        self._doing.discard(action)
        if not self.alive or self._superseded():
            return
        if isinstance(action, CommitFor):
            self.world.commits(action.task, action.attempt)
        elif isinstance(action, Step) and action.name == "unregister":
            self.engine.unregister(self.epoch)
        listed = isinstance(action, Step) and action.name == "list-inputs"
        self.tell(Did((action,), {"listings": self.listing} if listed else {}))

    def crash(self) -> None:
        """Killed: what was not synced may be gone, every connection closes."""
        self.alive = False
        self.world.disk.crash(self.epoch, self.world.rng)
        for link in list(self.links.values()):
            link.cut()
