"""Simulate the master: the real turns (`master.turn`) between a simulated disk, engine and network, dying at any point.

It does what the real shell does: events to the disk, a sync where one is a barrier, a look at the epoch, then what follows. A crash may
come between any two of these. A master that was replaced goes on until it looks at the epoch, and must do no harm before. Each
has a wall clock of its own, which may be wrong by an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.core.decide.decisions import decide
from trainmaster.core.decide.drive import Drive
from trainmaster.core.decide.requests import request_of
from trainmaster.core.fold.changes import fold
from trainmaster.core.machine.actions import CommitFor, Order, Step
from trainmaster.core.machine.events import Event
from trainmaster.core.machine.orders import order_message
from trainmaster.core.machine.snapshot import dump, load
from trainmaster.core.machine.state import GRANTED, State, Task, commits_parts, signal_fields
from trainmaster.core.machine.stimuli import (
    Connected,
    Disconnected,
    MasterStarted,
    Report,
    Stimulus,
    Submitted,
)
from trainmaster.core.spec.job import Job, uses
from trainmaster.master.turn import Turn, Turns
from trainmaster.simulation.agent import Agent
from trainmaster.simulation.containers import Containers
from trainmaster.simulation.engine import Engine
from trainmaster.simulation.meetings import check_decision
from trainmaster.simulation.network import RULES, Link
from trainmaster.simulation.world import Violation, World

FLUSH = 0.5  # s until notes are synced


class SimulatedMaster:
    """One master of one epoch. `submitted` is None once the log has it."""

    def __init__(
        self, world: World, engine: Engine, listing: dict[str, Any], submitted: Submitted | None, over: Callable[[], None], *,
        skew: float = 0.0, drive: type[Drive] = Drive,
    ) -> None:  # fmt: skip
        self.world, self.engine, self.listing = world, engine, listing
        self._over, self.skew = over, skew
        self.alive = True
        self.links: dict[tuple[str, int], Link] = {}
        self.epoch = world.disk.take_epoch()
        world.disk.seal()
        past = self._past = world.disk.read()
        self.turns = Turns(drive(fold(State(), past)))
        self.turns.tell(MasterStarted(self.epoch, {str(event.epoch): event.n for event in past}))
        self.turns.tell(*([] if submitted is None else [submitted]))
        self.dies_writing: Callable[[], Any] | None = None  # kills it while it next writes several events
        self._written: list[Event] = []
        self._unwritten: list[Event] = []  # events that could not be written once the storage was lost
        self._turning = False
        self._woken = -1.0
        self._flushing = False
        self._heard: dict[tuple[str, int], int] = {}  # the newest report of each agent that is not acknowledged
        self._failing_since: float | None = None
        self.containers = Containers(world, engine, self.epoch, self.tell, lambda: self.alive)
        self.containers.open({(task.key, task.serial) for task in self.state.tasks.values() if task.hold == GRANTED})
        self.stir()

    @property
    def state(self) -> State:
        return self.turns.state

    @property
    def wrote(self) -> bool:
        """Tell whether the master has written, or tried to write, any event."""
        return bool(self._written or self._unwritten)

    @property
    def log(self) -> list[Event]:
        """Return the job's events as this master knows them: those that readers see, and those that it could not write."""
        return self._past + self._written + self._unwritten if self._unwritten else self.world.disk.read()

    # -- what comes in --

    def tell(self, *stimuli: Stimulus) -> None:
        if self.alive:
            self.turns.tell(*stimuli)
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
        self.turns.hold(agent.key[0], agent.attempt, {name: agent.holds() for name in self.state.shards})
        return ""

    def hear(self, agent: Agent, report: dict[str, Any]) -> None:
        self.tell(Report(*agent.key, report["n"], report["attempt"], report["kind"], report))

    def closed(self, agent: Agent, link: Link) -> None:
        if self.links.get(agent.key) is link:
            del self.links[agent.key]
            self.tell(Disconnected(*agent.key))
            if not any(task == agent.key[0] for task, _ in self.links):  # else the task has a newer agent by now
                self._push(self._checked(self.turns.lose(agent.key[0])))

    def lease(self, agent: Agent, name: str) -> int | None:
        """Return a shard's number, None for not now, -1 at the end."""
        answer = self.turns.lease(agent.key[0], agent.attempt, name, 1) if self.alive else {}
        if answer.get("end"):
            return -1
        return answer["shards"][0][0] if answer.get("shards") else None

    def coordinate(self, agent: Agent, link: Link, message: dict[str, Any]) -> None:
        if self.links.get(agent.key) is link:
            self._push(self._checked(self.turns.coordinate(agent.key[0], message)))

    def _checked(self, pushes: Mapping[str, dict[str, Any]]) -> Mapping[str, dict[str, Any]]:
        """Hold what this master has just decided about programs that wait against the truth."""
        if self.alive:
            check_decision(self, self.world.truth.processes, self.state, pushes)
        return pushes

    def _push(self, pushes: Mapping[str, dict[str, Any]]) -> None:
        for task, push in pushes.items() if self.alive else ():
            if (link := self.links.get((task, self.state.tasks[task].serial))) is not None and link.open:
                link.send_down(link.agent.hear_waits, link, push)

    # -- turns --

    def _turn(self) -> None:
        self._turning = False
        if not self.alive:
            return
        turn = self.turns.take(self.world.now + self.skew)
        if self.world.seed % 10 == 0:  # it takes longer than the turn itself
            self._check_log_alone()
        for pushes in turn.pushes:
            self._checked(pushes)
        self._turning = True
        self._write(turn)

    def _check_log_alone(self) -> None:
        """Hold what was decided while the log was written against what a new master would decide from it."""
        self.world.truth.turns_checked += 1
        facts = decide(load(dump(self.state)), None, self.state.at)
        if facts:
            raise Violation(f"a new master would decide {facts[0]}, and this one did not")

    def _write(self, turn: Turn) -> None:
        if not self.alive:
            return
        if turn.events and not self.turns.is_unwritable and self.world.now < self.world.disk.full_until:
            if self._failing_since is None:
                self._failing_since = self.world.now
            if self.world.now - self._failing_since < (self.state.known_job.timeouts.storage or 1e18):
                self.world.at(1.0, self._write, turn)
                return
            self.turns.fail("the disk is full")
        self._failing_since = None
        if self.turns.is_unwritable:
            if self._superseded():
                return
            self._unwritten += turn.events
            self._perform(turn)
            return
        if self.dies_writing is not None and len(turn.events) > 1:
            self.world.disk.append(self.epoch, turn.events[: self.world.rng.randrange(1, len(turn.events))])
            self.dies_writing()
            return
        self.world.disk.append(self.epoch, turn.events)
        self._written += turn.events
        self._heard.update(turn.heard)
        if turn.barrier:
            self.world.at(self.world.rng.uniform(0.0005, 0.01), self._synced, turn)
        else:
            if (turn.events or self._heard) and not self._flushing:
                self._flushing = True
                self.world.at(FLUSH, self._flush)
            self._perform(turn)

    def _flush(self) -> None:
        self._flushing = False
        if self.alive and not self._superseded():
            self._sync()

    def _sync(self) -> None:
        """Sync all that was appended, and acknowledge the reports in it: agents need not keep those."""
        self.world.disk.sync(self.epoch)
        heard = [(link, number) for key, number in self._heard.items() if (link := self.links.get(key)) is not None]
        self._heard.clear()
        if heard:
            self.world.at(self.world.delay(RULES["frame"]), self._acknowledge, heard)

    def _acknowledge(self, heard: list[tuple[Link, int]]) -> None:
        for link, number in heard:
            if link.open:
                link.agent.acknowledged(number)

    def _synced(self, turn: Turn) -> None:
        if self.alive and not self._superseded():
            self._sync()
            self._perform(turn)

    def _superseded(self) -> bool:
        """Stop this master, before it acts, where a later one has taken an epoch; return True then."""
        self.alive = self.world.disk.epoch == self.epoch
        return not self.alive

    def _perform(self, turn: Turn) -> None:
        for pushes in turn.pushes:
            self._push(pushes)
        work = self.turns.perform(turn)
        for key in work.releases:
            self.containers.release(key)
        if work.asks is not None:
            tasks = [(self.state.tasks[key], serial) for key, serial in work.asks]
            self.containers.ask([request_of(self.state, task, serial, 2**30) for task, serial in tasks])
        self.turns.sent([order for order in work.orders if self._send(order)])
        for step in work.steps:
            self.world.at(self.world.rng.uniform(0.0, 0.5), self._carry_out, step)
        self._turning = False
        if self.turns.drive.closed:
            self._sync()  # a master that ends closes its log, which makes it durable
            self._over()
            return
        if self.turns.inbox:
            self.stir()
        wake = self.turns.drive.wake
        if wake is not None and (wake != self._woken or wake <= self.world.now + self.skew):
            self._woken = wake
            self.world.at(max(0.0, wake - self.world.now - self.skew), self.stir)

    def _send(self, order: Order) -> bool:
        link = self.links.get((order.task, order.serial))
        if link is None or not link.open:
            return False
        link.send_down(
            link.agent.obey, order_message(self.epoch, order.attempt, order.verb, order.id, **self._fields(order))
        )
        return True

    def _fields(self, order: Order) -> dict[str, Any]:
        """Return the fields of an order; the environment has what the simulated program needs to know."""
        job, task = self.state.known_job, self.state.tasks[order.task]
        if order.verb == "stop":
            return {"grace": job.roles[task.role].stop.grace}
        if order.verb == "prepare":
            return {"workdir": "share", "checkpoint": {"set": self.state.groups[task.group].set}}
        if order.verb == "peer-finished":
            return {"limit": job.timeouts.finish or 600.0}
        if order.verb == "signal":
            return signal_fields(task, order.id)
        if order.verb == "warm-up":
            return {"workdir": "share", "command": ""}
        if order.verb == "start":
            return {"command": "", "env": self._env(job, task), "parts": commits_parts(self.state, task)}
        return {}

    def _env(self, job: Job, task: Task) -> dict[str, Any]:
        env: dict[str, Any] = {}
        if task.whole:
            env["marks"] = self._marks  # it writes checkpoints
            if job.gang:
                env["generation"] = (task.group, self.state.groups[task.group].generation)
        if reads := [input_.name for input_ in uses(job, task.role) if input_.name in self.state.shards]:
            env["input"] = reads[0]
        return env

    def _marks(self) -> dict[str, Any]:
        return {name: table.marks() for name, table in self.state.shards.items()}

    def _carry_out(self, step: CommitFor | Step) -> None:
        if not self.alive or self._superseded():
            return
        if isinstance(step, CommitFor):
            self.world.commits(step.task, step.attempt)
        elif step.name == "unregister":
            if names := self.containers.book.held():
                raise Violation(f"containers are held when the job is unregistered: {names[:5]}")
            self.containers.close()
        is_listed = isinstance(step, Step) and step.name == "list-inputs"
        self.turns.carried_out(step, {"listings": self.listing} if is_listed else {})
        self.stir()

    def crash(self) -> None:
        """Kill the master: events that were not synced may be lost, and every connection closes."""
        self.alive = False
        self.world.disk.crash(self.epoch, self.world.rng)
        for link in list(self.links.values()):
            link.cut()
