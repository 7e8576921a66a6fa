"""Say how fast a simulated program works: the seconds of a step, by where it runs, when, and beside how many others."""

from __future__ import annotations

import math
import random

import attrs

EVERY = 5.0  # s between two reports of a program


@attrs.frozen
class Steps:
    """The steps of all programs of one job. Times in s of the world, from its beginning."""

    seconds: float = 1.0  # of a step
    room: float = math.inf  # programs that go at full speed together: more of them share what so many do
    later: tuple[float, float] = (math.inf, math.inf)  # (from then on, the room)
    slow: float = 1.0  # times as long, on the slow node, or of the slow task
    node: str = ""  # the slow one
    index: int = -1  # of the slow task
    until: float = math.inf  # it is slow
    warm_up: float = 0.0  # s of an attempt in which a step takes ten times as long
    noise: float = 0.0  # the relative deviation of a step, at most
    pause: float = 0.0  # s without a step, now and then, of the first task alone: an evaluation

    def made(self, task: str, node: str, ran: float, running: int, now: float) -> float:
        """Return the steps that a program makes in EVERY seconds, after it `ran` so long, beside `running` programs with itself."""
        if self.pause and task.endswith(":0") and ran % 300.0 < self.pause:
            return 0.0
        room = self.later[1] if now >= self.later[0] else self.room
        seconds = self.seconds * max(1.0, running / room)
        is_slow = (node == self.node or task.endswith(f":{self.index}")) and now < self.until
        seconds *= self.slow if is_slow else 1.0
        seconds *= 10.0 if ran < self.warm_up else 1.0
        return EVERY / seconds * (1.0 + self.noise * random.Random(f"{task} {now}").uniform(-1.0, 1.0))
