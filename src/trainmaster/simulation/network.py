"""Simulate the network: frames arrive in order over one connection, late or never once it is cut, and old ones twice.

TCP's promise holds for one `Link`: a prefix of the sent frames arrives, in order. No order holds between two links, so frames that an
agent sends again over the next link race with frames still on their way over the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from trainmaster.simulation.world import Rule, World

if TYPE_CHECKING:
    from trainmaster.simulation.agent import Agent

RULES: dict[str, Rule] = {
    "frame": Rule(
        "a round trip is 0.2 ms in a rack and some 10 ms between sites or through a busy proxy", 0.0005, 0.02
    ),
    "frame-late": Rule(
        "what the kernel had taken before a cut is read all the same",
        0.0,
        0.1,
        0.5,
    ),
    "frame-twice": Rule(
        "a sender that heard no acknowledgement sends again",
        0.0,
        60.0,
        0.02,
    ),
    "cut-noticed-late": Rule(
        "a closed socket is noticed at once; a silent one by pings each 2 s, two of them missing", 0.0, 4.0, 0.5
    ),
    "reconnect": Rule("agents read the master's record again with jitter while they are disconnected", 0.2, 1.5),
}


class Master(Protocol):
    """The part of a master that agents see."""

    epoch: int
    alive: bool

    def accept(self, agent: Agent, link: Link) -> str:
        """Accept the connection and return "", or return the reason for refusing it."""

    def hear(self, agent: Agent, report: dict[str, Any]) -> None: ...

    def closed(self, agent: Agent, link: Link) -> None: ...

    def lease(self, agent: Agent, name: str) -> int | None: ...

    def coordinate(self, agent: Agent, link: Link, message: dict[str, Any]) -> None: ...


@attrs.define(slots=True, eq=False)
class Link:
    """One connection between an agent and a master."""

    world: World
    agent: Agent
    master: Master
    open: bool = True
    lingers: float = 0.0  # once closed: until when frames on their way still arrive
    up: float = 0.0  # when the last message upwards arrives
    down: float = 0.0

    def send_up(self, report: dict[str, Any]) -> None:
        self.up = max(self.up, self.world.now + self.world.delay(RULES["frame"]))
        self.world.at(self.up - self.world.now, self._deliver_up, report)

    def send_waits(self, message: dict[str, Any]) -> None:
        """Send what programs wait for, in the order of the reports: it is reported anew on each link, and never sent again."""
        self.up = max(self.up, self.world.now + self.world.delay(RULES["frame"]))
        self.world.at(self.up - self.world.now, self._deliver_waits, message)

    def _deliver_waits(self, message: dict[str, Any]) -> None:
        if self._arrives() and self.master.alive:
            self.master.coordinate(self.agent, self, message)

    def send_down(self, act: Callable[..., None], *args: Any) -> None:
        self.down = max(self.down, self.world.now + self.world.delay(RULES["frame"]))
        self.world.at(self.down - self.world.now, self._deliver_down, act, args)

    def _arrives(self) -> bool:
        return self.open or self.world.now <= self.lingers

    def _deliver_up(self, report: dict[str, Any]) -> None:
        if self._arrives() and self.master.alive:
            self.master.hear(self.agent, report)
            if self.world.happens("frame-twice", RULES):
                self.world.at(self.world.delay(RULES["frame-twice"]), self._hear_again, report)

    def _hear_again(self, report: dict[str, Any]) -> None:
        if self.master.alive:
            self.master.hear(self.agent, report)

    def _deliver_down(self, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._arrives() and self.agent.alive:
            act(*args)
            if self.world.happens("frame-twice", RULES):
                self.world.at(self.world.delay(RULES["frame-twice"]), self._act_again, act, args)

    def _act_again(self, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.agent.alive:
            act(*args)

    def close(self) -> None:
        """Stop sending; frames on their way may still arrive."""
        self.open = False
        if self.world.happens("frame-late", RULES):
            self.lingers = self.world.now + self.world.delay(RULES["frame-late"])

    def cut(self) -> None:
        """Break the connection; each side notices at once, or when pings stay away."""
        if self.open:
            self.close()
            late = self.world.happens("cut-noticed-late", RULES)
            notice = self.world.delay(RULES["cut-noticed-late"]) if late else 0.01
            self.world.at(self.world.rng.uniform(0.0, notice), self.master.closed, self.agent, self)
            self.agent.cut_off(self, notice)
