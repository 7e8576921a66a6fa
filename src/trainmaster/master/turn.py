"""Take the master's turns, without I/O: stimuli in, events to be written, then what is to be acknowledged and done.

A shell drives it: `master.shell` where jobs run, `simulation.master` where they are simulated, so that what is simulated is what runs.

    tell  ->  take  ->  the shell writes the events, synced where one is a barrier  ->  perform  ->  the shell does that  ->  tell ...

Four rules hold here. Asks go to the core first, as `Did`, and so are on record before the engine answers. A commit or a step is carried out
once at a time. Once the log cannot be written nothing is begun any more: only actions that end something are carried out. Tasks' leases
(`core.input.leases`) are kept between turns and not in events, so the core sees only the part of a report whose leases its task holds. The
barriers, locks and rendezvous of programs (`core.coordination`) and their pace (`core.pace`) are kept in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.coordination import Coordination
from trainmaster.core.decide.drive import Drive, needs_barrier
from trainmaster.core.decide.plan import ends_something
from trainmaster.core.decide.poison import pending
from trainmaster.core.input.leases import Leases
from trainmaster.core.machine.actions import Action, Ask, CommitFor, Order, Release, Step
from trainmaster.core.machine.events import Event
from trainmaster.core.machine.phases import READING
from trainmaster.core.machine.state import ASKED, State
from trainmaster.core.machine.stimuli import ContainerLost, Did, Key, Report, Stimulus, StorageLost, Tick
from trainmaster.core.pace import Paces
from trainmaster.core.plain import Plain
from trainmaster.core.spec.job import COUNTED_LATER

LEASED_AT_ONCE = 4096  # shards
BATCH = 2000  # stimuli taken in one turn; ten thousand reports in one would hold up pings and readers


@attrs.frozen(slots=True, eq=False, repr=False)
class Turn(Plain):
    """The outcome of one batch of stimuli. Nothing of it may be done before its events are written."""

    events: list[Event]
    barrier: bool  # the events are to be on stable storage first
    heard: Mapping[Key, int]  # the newest report of each agent, to be acknowledged once the events are durable
    lost: Sequence[Key]  # containers that the engine gave up: an agent that lives on there is to end
    actions: list[Action]
    # To the agents of tasks, in order: what was decided about waits in this turn, and since then while it was written.
    pushes: Sequence[Mapping[str, dict[str, Any]]] = ()


@attrs.frozen(slots=True, eq=False, repr=False)
class Work(Plain):
    """The work that a shell does after a turn."""

    releases: Sequence[Key]
    asks: list[Key] | None  # all containers that are wanted and not granted; None where the engine knows them already
    orders: Sequence[Order]  # to agents; `sent` reports those that were sent
    steps: Sequence[CommitFor | Step]  # `carried_out` reports each once it is done


class Turns:
    """The turns of one master."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.inbox: list[Stimulus] = []
        self.is_unwritable = False
        self._doing: set[Action] = set()
        self._asked: list[Key] = []
        self._pushes: list[dict[str, dict[str, Any]]] = []  # of turns that are not performed yet
        reading = [task.key for task in self.state.tasks.values() if task.phase in READING]
        self.leases = Leases(self.state.shards, reading)
        self.coordination = Coordination(reading)
        self.paces = Paces()

    @property
    def state(self) -> State:
        return self.drive.state

    def tell(self, *stimuli: Stimulus) -> None:
        self.inbox += stimuli

    def sent(self, orders: Sequence[Order]) -> None:
        """Tell that orders were sent."""
        if orders:
            self.tell(Did(tuple(orders)))

    def carried_out(self, action: CommitFor | Step, result: Mapping[str, Any], gave_up: str = "") -> None:
        """Tell that a commit or a step is over; `gave_up`: why it was left undone."""
        self.tell(Did((action,), result, gave_up))

    def take(self, now: float, size: int | None = BATCH) -> Turn:
        """Take up to `size` stimuli, all of them where None; without any, time has passed."""
        end = len(self.inbox) if size is None else size
        batch, self.inbox = self.inbox[:end] or [Tick()], self.inbox[end:]
        if (measured := self.paces.take(self.state, batch, now)) is not None:
            batch = [*batch, measured]
        events, actions = self.drive.take(map(self._held_part, batch) if self.state.shards else batch, now)
        self.leases.follow(events)
        if pushes := self.coordination.follow(self.state, events):
            self._pushes.append(pushes)
        self._doing.difference_update(action for did in batch if isinstance(did, Did) for action in did.actions)
        heard = {(report.task, report.serial): report.n for report in batch if isinstance(report, Report)}
        lost = [(container.task, container.serial) for container in batch if isinstance(container, ContainerLost)]
        return Turn(events, needs_barrier(events), heard, lost, actions, self._pushes)

    def fail(self, detail: str) -> None:
        """End the job and stop what runs: the log could not be written for too long, so nothing more can be kept."""
        self.is_unwritable = True
        self.tell(StorageLost(detail))

    def perform(self, turn: Turn) -> Work:
        """Return what is to be done, once the turn's events are written and its pushes sent."""
        self._pushes = []
        actions = [action for action in turn.actions if not self.is_unwritable or ends_something(action)]
        asks = [action for action in actions if isinstance(action, Ask)]
        releases = [action for action in actions if isinstance(action, Release)]
        if asks or releases:
            self.tell(Did((*asks, *releases)))
            withdrawn = {(release.task, release.serial) for release in releases}
            still_asked = [key for key in self.pending() if key not in withdrawn]
            self._asked = [*still_asked, *((ask.task, ask.serial) for ask in asks)]
        steps = [action for action in actions if isinstance(action, CommitFor | Step) and action not in self._doing]
        self._doing.update(steps)
        return Work(
            [(release.task, release.serial) for release in releases], self._asked if asks or releases else None,
            [action for action in actions if isinstance(action, Order)], steps,
        )  # fmt: skip

    def pending(self) -> list[Key]:
        """Return the containers that were asked for, and neither granted nor withdrawn."""
        tasks = self.state.tasks
        return [key for key in self._asked if tasks[key[0]].hold == ASKED and tasks[key[0]].serial == key[1]]

    # -- barriers, locks and leases --

    def coordinate(self, task: str, message: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Take in what an agent says that its programs wait for. Return what is to be pushed to agents at once, by task."""
        if "passed" in message:  # on a new connection, which has the last word about what its programs heard
            for pushes in self._pushes:
                pushes.pop(task, None)
        return self._in_order(self.coordination.take(self.state, task, message))

    def lose(self, task: str) -> dict[str, dict[str, Any]]:
        """Note that the agent of a task is away. Return what is to be pushed to the others at once."""
        return self._in_order(self.coordination.lose(self.state, task))

    def _in_order(self, pushes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return what may be pushed at once: nothing while a turn with pushes is written, or a round could be over before it has opened."""
        if self._pushes and pushes:
            self._pushes.append(pushes)
            return {}
        return pushes

    def lease(self, task: str, attempt: Any, name: str, want: int, unread: Any = ()) -> dict[str, Any]:
        """Return the answer to an agent that asks for up to `want` shards of an input, and gives the ranges `unread` back."""
        if name not in self.state.shards:
            source = self.state.known_job.inputs.get(name)
            is_later = source is not None and source.url == COUNTED_LATER  # the report of its count is on its way
            return {"files": [], "shards": [], "unknown": not is_later}
        if not self._may_hold(task, attempt) or self.state.tasks[task].doomed:
            return {"files": [], "shards": []}
        self.leases.give_back(name, task, unread)
        shards = self.leases.lease(name, task, min(want, LEASED_AT_ONCE), *pending(self.state, name))
        return self.leases.answer(name, shards)

    def hold(self, task: str, attempt: int, holds: Mapping[str, Any]) -> dict[str, list[list[int]]]:
        """Note which shards (input -> ranges) the agent of an attempt says that it holds. Return those that it must drop."""
        return self.leases.hold(task, holds, may_hold=self._may_hold(task, attempt))

    def _may_hold(self, task: str, attempt: Any) -> bool:
        present = self.state.tasks[task]
        return present.attempt == attempt and present.phase in READING

    def _held_part(self, stimulus: Stimulus) -> Stimulus:
        if isinstance(stimulus, Report) and stimulus.kind == "shards-done":
            return attrs.evolve(stimulus, data=self.leases.held_part(stimulus.task, stimulus.data))
        return stimulus
