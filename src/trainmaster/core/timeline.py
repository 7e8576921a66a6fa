"""The course of a job: its attempts, generations, masters and marks, as its events tell them.

`State` has what is now; a `Timeline` has what was: who ran where and when. It is a fold of its own, made only where somebody looks at it.
Times are in seconds since 1970, by the log's clock.
"""

from __future__ import annotations

from typing import Any

import attrs

from trainmaster.core.machine.events import Event


@attrs.define(slots=True)
class Attempt:
    """One try of a task. A time is None until it has come."""

    task: str
    attempt: int
    generation: int = 0  # 0: none yet
    rank: int | None = None
    node: str = ""
    container: str = ""
    devices: list[Any] = attrs.field(factory=list)
    began: float | None = None  # its first event
    ready: float | None = None
    started: float | None = None  # the program
    ended: float | None = None
    state: str = "pending"  # pending, staging, running, succeeded, failed, killed, lost
    reason: str = ""
    figures: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen(slots=True)
class Mark:
    """A moment that readers look for. `kind`: restart, preemption, save, checkpoint, resize, master, user, trouble or end."""

    at: float
    kind: str
    text: str
    task: str = ""
    n: int = 0  # the event


@attrs.frozen(slots=True)
class Generation:
    """One formed group. `members`: task -> rank."""

    group: int
    generation: int
    formed: float
    members: dict[str, int]


@attrs.frozen(slots=True)
class Epoch:
    """One master."""

    epoch: int
    began: float
    place: str


@attrs.define(slots=True)
class Timeline:
    """The course of a job so far. `n`: the last event taken."""

    n: int = 0
    at: float = 0.0
    attempts: dict[tuple[str, int], Attempt] = attrs.field(factory=dict)
    generations: list[Generation] = attrs.field(factory=list)
    epochs: list[Epoch] = attrs.field(factory=list)
    marks: list[Mark] = attrs.field(factory=list)

    def take(self, event: Event) -> None:
        """Take in the next event."""
        self.n, self.at = event.n, event.at
