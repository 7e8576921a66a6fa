"""Simulate programs that wait for each other, at a rendezvous, at a barrier or for a lock, and check what their masters answer.

The way between is the real one: the agent's `Waits`, the master's `Turns`. A program of a rendezvous joins, makes steps while all members
of its round are in it, and joins anew once the round is broken or somebody is wanted in it. Where it trains, a step adds the shard that a
member has read to the state of all members, which a newcomer takes (`runtime.elastic`). One of a barrier comes to it again and again; one
of a lock holds it for a while. Promises hold at two moments: as a master decides (`check_decision`), and as a program hears of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.core.machine.phases import READING
from trainmaster.core.machine.state import State, Task
from trainmaster.core.waits import BARRIER, BROKEN, LOCK, RENDEZVOUS, WANTED
from trainmaster.runtime.elastic.rounds import NO_STATE, STATE, Member, Round
from trainmaster.simulation.network import Master
from trainmaster.simulation.world import Violation

if TYPE_CHECKING:
    from trainmaster.simulation.agent import Agent

NAME = "all"  # of the one rendezvous of each role, of the barrier and of the lock
AT_LEAST, AT_MOST = 0.5, 5.0  # s between two acts of a program
LATE = 5.0  # s after which a master knows that a program has ended or its agent is away
PATIENCE = 3600.0  # s that a program waits at most once the faults have ended; by then a lost node is reported, and a hang ended


class Process:
    """The program of one attempt. It implements `agent.link.waits.Waiter`."""

    def __init__(self, agent: Agent, attempt: int, kind: str) -> None:
        self.agent, self.attempt, self.kind, self.world = agent, attempt, kind, agent.world
        self.task, self.role = agent.container.task, agent.container.task.partition(":")[0]
        self.began = self.asked = self.heard = self.got_on = self.world.now
        self.ended: float | None = None
        self.is_waiting = self.is_broken = self.is_wanted = self.holds = False
        self.round = self.newest = self.step = 0
        self.state: set[int] | None = None  # the shards that its model has learnt; None: it was given no state yet
        self.hand: tuple[str, int] | None = None  # the input and number of the shard that is read, and in no step yet
        self._told = 0  # the round in which it said that the training begins with its state
        self._has_state = NO_STATE  # of the other members
        self._is_behind = False  # it has entered a round, and has not got that round's state
        self.members: list[list[Any]] = []
        self._requests = itertools.count(1)
        self.world.truth.processes[self.task, attempt] = self
        self._act_later()

    def _act_later(self) -> None:
        self.world.at(self.world.rng.uniform(AT_LEAST, AT_MOST), self._act)

    def end(self) -> None:
        """Close its connections: the process is over."""
        self.ended = self.world.now
        self.agent.waits.left(self)

    def away_since(self, master: Master) -> float | None:
        """Return since when a master cannot hear of the process; None where it can."""
        if self.ended is not None:
            return self.ended
        link = self.agent.link
        return None if link is not None and link.master is master else self.agent.silent_since

    @property
    def counts(self) -> bool:
        """Tell whether it lives and nobody has given its attempt up."""
        copy = self.world.truth.running.get(self.task, {}).get(self.attempt)
        return self.ended is None and copy is not None and copy.stranded is None

    def _act(self) -> None:
        if self.ended is not None:
            return
        if not self.world.calm:
            self.got_on = self.world.now
        elif self.world.now - self.got_on > PATIENCE:
            raise Violation(f"{self.task}: attempt {self.attempt} waits for ever: {self.kind}, round {self.round}")
        if self.holds:
            self.holds = False
            self.agent.waits.left(self)
        if self.kind == RENDEZVOUS:
            self._train()
        elif not self.is_waiting:
            self.is_waiting, self.asked = True, self.world.now
            self.agent.waits.add(self, next(self._requests), self.kind, NAME, 0)
        self._act_later()

    @property
    def is_blocked(self) -> bool:
        """Tell whether it can do nothing: it waits, or is in the middle of a step that some member of its round will not finish."""
        if self.is_waiting or (self.trains and not self.round):
            return True
        if self.round == 0 or self.is_broken:
            return False
        fellows = self._fellows()
        return len(fellows) < len(self.members) or (self.trains and any(fellow._is_behind for fellow in fellows))

    @property
    def mark(self) -> tuple[str, int, int]:
        """Return the mark of its state: of which training, round and step it is."""
        return NAME, self.round, self.step

    @property
    def must_stay(self) -> bool:
        """Tell whether it cannot end well yet: it is in the middle of something, or its training has gone on without it."""
        return self.is_blocked or (self.trains and self.is_broken)

    @property
    def has_no_state(self) -> bool:
        """Tell whether it waits for the training's state, and reads nothing before."""
        return self.trains and self.state is None

    @property
    def trains(self) -> bool:
        return self.agent.habits.trains

    def _train(self) -> None:
        """Make a step, which needs all members in the round; all leave it together where somebody is wanted."""
        if self._is_behind and not self.is_broken:
            self._take_state()
        if self.is_blocked and (self.round or self.is_waiting):
            return
        if not self.round or self.is_broken or self.world.rng.random() < 0.02:
            self._join(agreed=False)
            return
        fellows = self._fellows()
        if self.trains and self.world.rng.random() < 0.02:
            for fellow in fellows:  # none of the others gets the whole sum, and each joins anew
                fellow.is_broken = fellow is not self
            fellows = [self]
        for fellow in fellows if self.trains else (self,):
            fellow.step, fellow.got_on = fellow.step + 1, self.world.now
        if self.hand is not None:
            name, number = self.hand
            self.hand = None
            for fellow in fellows:
                assert fellow.state is not None
                fellow.state.add(number)
            self.agent.trained(self.attempt, name, number)
        if any(fellow.is_wanted for fellow in fellows):
            for fellow in fellows:
                fellow._join(agreed=True)

    def _fellows(self) -> list[Process]:
        """Return the processes that are in its round still and have not heard that it is over, itself among them."""
        processes = self.world.truth.processes.values()
        return [
            other
            for other in processes
            if other.counts and not other.is_broken and (other.role, other.round) == (self.role, self.round)
        ]

    def _take_state(self) -> None:
        """Begin a training where it is the source of the round's state, else take that state once it is there."""
        meeting = self._meeting
        states = [int(member.payload) for member in meeting.members]
        source = meeting.furthest(meeting.holders(states))
        if source == meeting.rank:
            if self._told != self.round:
                self._told, lost = self.round, meeting.begins_anew(states)
                begun = {"training": NAME, "round": self.round, "step": self.step}
                self.agent.report("state-begun", self.attempt, **begun, lost=lost, restored=False)
            if self.agent.holds_report("state-begun"):
                return
            self.state = set() if self.state is None else self.state
        else:
            task = meeting.members[source].task
            fellow = next((fellow for fellow in self._fellows() if fellow.task == task), None)
            if fellow is None or fellow._is_behind or fellow.state is None:
                return
            self.state, self.step = set(fellow.state), fellow.step
        self._is_behind, self._has_state = False, STATE

    def _join(self, *, agreed: bool) -> None:
        self.round, self.is_waiting = 0, True
        payload = str(self._has_state if self.trains else self.attempt)
        more = {"payload": payload, "step": self.step, "agreed": agreed}
        if why := self.agent.waits.join(self, next(self._requests), NAME, 0, more):
            raise Violation(f"{self.task}: attempt {self.attempt} may not join: {why}")

    # -- what it hears --

    def reply(self, request: int, answer: Mapping[str, Any]) -> None:
        if not self.is_waiting:
            raise Violation(f"{self.task}: attempt {self.attempt} is answered, and does not wait")
        self.is_waiting, self.heard, self.got_on = False, self.world.now, self.world.now
        self.world.truth.met[self.kind] += 1
        if self.kind == RENDEZVOUS:
            self._enter(answer)
        elif self.kind == LOCK:
            holders = [other.task for other in self.world.truth.processes.values() if other.holds and other.counts]
            if holders and self.counts:
                raise Violation(f"{self.task} holds the lock that {holders} holds")
            self.holds = True

    def _enter(self, answer: Mapping[str, Any]) -> None:
        number, members = answer["round"], answer["members"]
        if number <= self.newest:
            raise Violation(f"{self.task} was in round {self.newest} of its rendezvous, and enters {number}")
        if members[answer["rank"]][:2] != [self.task, 0]:
            raise Violation(f"{self.task} is rank {answer['rank']} of round {number}, where others see {members}")
        self.newest = self.round = number
        self.members, self.is_broken, self.is_wanted = members, False, False
        self._is_behind = True
        self._meeting = Round(number, answer["rank"], [Member(*row) for row in members], answer["finished"])
        self._has_state = self._meeting.after_joining(self._has_state)
        if self.trains and self._meeting.is_too_late:
            self.agent.end_program(self.attempt, {"reason": "exit", "status": 0})  # too late: nothing is left to train
        if self.counts and any(other.members != members for other in self._fellows()):
            raise Violation(f"{self.role}: two rounds {number} of different members")

    def send(self, frame: Mapping[str, Any]) -> None:
        if frame["round"] == self.round:
            self.is_broken |= frame["op"] == BROKEN
            self.is_wanted |= frame["op"] == WANTED


def check_decision(
    master: Master, processes: Mapping[tuple[str, int], Process], state: State, pushes: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise Violation where a master lets through whom it should not, at the moment at which it decides."""
    for task, push in pushes.items():
        for _, number, _, members, _ in push.get("opened", ()):
            for member, *_ in members:
                _check_member(master, processes.get((member, state.tasks[member].attempt)), member, number)
        process = processes.get((task, push["attempt"]))
        if push["over"] and process is not None and process.kind == BARRIER and process.away_since(master) is None:
            _check_barrier(master, processes, state, process)


def _check_member(master: Master, process: Process | None, task: str, number: int) -> None:
    if process is None:
        raise Violation(f"{task} is a member of round {number}, and has no program")
    since = process.away_since(master)
    if since is None and not process.is_waiting:
        raise Violation(f"{task} is a member of round {number}, and does not wait")
    if since is not None and process.world.now - since > LATE:
        raise Violation(
            f"{task} is a member of round {number}, and has been away for {process.world.now - since:.1f} s"
        )


def _check_barrier(
    master: Master, processes: Mapping[tuple[str, int], Process], state: State, process: Process
) -> None:
    """Check that all who are to meet a process at the barrier are there, or were let through since it came."""
    present = state.tasks[process.task]
    for task in state.tasks.values():
        other = processes.get((task.key, task.attempt))
        if other is None or not _meet(present, task) or task.doomed or task.phase not in READING:
            continue
        was_there = other.is_waiting or other.heard > process.asked or other.began > process.asked
        if other.away_since(master) is None and not was_there:
            raise Violation(f"{process.task} is let through the barrier, and {task.key} has not come to it")


def _meet(task: Task, other: Task) -> bool:
    return task.group == other.group and ((task.counts and other.counts) or task.role == other.role)
