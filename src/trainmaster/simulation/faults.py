"""Make the world go wrong: each fault is a named class. `strike` lets it happen, and returns True where it hit anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from trainmaster.simulation.play import Play


class Fault(Protocol):
    def strike(self, play: Play) -> bool: ...


@attrs.frozen
class KillProgram:
    """A program dies of a signal."""

    def strike(self, play: Play) -> bool:
        agent = play.any_agent(running=True)
        if agent is not None:
            agent.end_program(agent.running, {"reason": "signal", "figures": {"name": "SIGKILL"}})
        return agent is not None


@attrs.frozen
class KillAgent:
    """An agent, and with it its program, dies; the engine tells so."""

    def strike(self, play: Play) -> bool:
        agent = play.any_agent()
        if agent is not None:
            agent.die(-9)
        return agent is not None


@attrs.frozen
class KillMaster:
    """The master dies; another starts within `back` seconds."""

    back: float = 2.0

    def strike(self, play: Play) -> bool:
        return play.kill_master(self.back)


@attrs.frozen
class TearWrite:
    """The master dies while it writes several events: only the first of them are on the disk."""

    def strike(self, play: Play) -> bool:
        play.master.dies_writing = lambda: play.kill_master(2.0)
        return play.master.alive


@attrs.frozen
class ReplaceMaster:
    """A second master starts while the first still acts, not knowing that it was replaced."""

    def strike(self, play: Play) -> bool:
        play.replace_master()
        return True


@attrs.frozen
class CutNetwork:
    """An agent and the master do not reach each other for a while."""

    seconds: float

    def strike(self, play: Play) -> bool:
        agent = play.any_agent()
        if agent is not None:
            play.cut(agent, self.seconds)
        return agent is not None


@attrs.frozen
class LoseNode:
    """A node is gone for good: with `lives_on`, only for the engine and the network, as behind a partition."""

    lives_on: bool

    def strike(self, play: Play) -> bool:
        agent = play.any_agent()
        return agent is not None and play.lose_node(agent.container.node, self.lives_on)


@attrs.frozen
class Preempt:
    """The engine takes a container back."""

    def strike(self, play: Play) -> bool:
        agent = play.any_agent()
        if agent is not None:
            play.engine.preempt(agent.container)
        return agent is not None


@attrs.frozen
class FillDisk:
    """The log cannot be written for a while."""

    seconds: float

    def strike(self, play: Play) -> bool:
        play.world.disk.full_until = play.world.now + self.seconds
        return True


@attrs.frozen
class CloseEngine:
    """Nothing is granted for a while."""

    seconds: float

    def strike(self, play: Play) -> bool:
        play.engine.closed_until = play.world.now + self.seconds
        return True


@attrs.frozen
class CrowdEngine:
    """Others leave room for `room` containers for a while: grants are partial."""

    seconds: float
    room: int

    def strike(self, play: Play) -> bool:
        play.engine.crowded_until, play.engine.room = play.world.now + self.seconds, self.room
        return True


@attrs.frozen
class RefuseAsk:
    """The next ask is more than the engine will ever grant."""

    def strike(self, play: Play) -> bool:
        play.engine.refuses = True
        return True


@attrs.frozen
class ForgetAsks:
    """The part of the engine that takes asks is restarted, and forgets them."""

    def strike(self, play: Play) -> bool:
        if not play.engine.kind.forgets:
            return False
        play.engine.restart()
        return True


ALL: tuple[Fault, ...] = (
    KillProgram(), KillAgent(), KillMaster(), KillMaster(0.0), KillMaster(25.0), KillMaster(60.0), ReplaceMaster(), TearWrite(),
    CutNetwork(3.0), CutNetwork(20.0), CutNetwork(45.0),
    CutNetwork(300.0), LoseNode(False), LoseNode(True), Preempt(), FillDisk(8.0), FillDisk(90.0), CloseEngine(40.0),
    CrowdEngine(120.0, 1), CrowdEngine(900.0, 2), ForgetAsks(),
)  # fmt: skip
FATAL: tuple[Fault, ...] = (RefuseAsk(),)  # after which the job must end
