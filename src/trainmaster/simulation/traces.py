"""Test whether the simulated engine can behave as the trace of a real one shows.

A trace is a list of rows, in order: the asks of an engine, the events of its world, and the changes that it reported,

    {"do": "open" | "ask" | "release", "keys": [[task, serial], ...]}     a call of the master; for `open` the keys that are held
    {"happens": "exit" | "lost" | "preempt", "key": [task, serial]}       a container's end, at that time or a little before
    {"happens": "refuse"}                                                 the engine never grants the next ask
    {"tells": "granted" | ..., "key": [task, serial], ...}                a change that the engine reported; more fields are for readers

`reproduce` runs the simulated engine's own code through a trace: an event that is due may happen at any time, and each rule that
strikes by chance may strike or not. A trace is reproduced where some such run reports the same changes as the real engine, in that order.
So a habit of the real engine that the simulated one lacks, and that jobs would meet unprepared, is found as the row that no run reaches.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs

from trainmaster.core.containers import Request
from trainmaster.core.machine.stimuli import ContainerExited, ContainerLost, Granted, Refused, Stimulus, Waiting, Warned
from trainmaster.simulation.containers import Containers
from trainmaster.simulation.engine import KINDS, Container, Engine
from trainmaster.simulation.world import Act, Rule, Truth, Violation

Row = Mapping[str, Any]
Change = Granted | Refused | Waiting | ContainerExited | ContainerLost | Warned
TELLS: dict[type, str] = {
    Granted: "granted", Refused: "refused", Waiting: "waiting", ContainerExited: "exited", ContainerLost: "lost", Warned: "warned",
}  # fmt: skip
RUNS = 20_000  # tried before a trace is given up
# A trace of what a master heard does not show what the book hid.
_KIND = attrs.evolve(
    KINDS[0], unknown=frozenset({"deny", "seen-twice", "grant-twice", "exit-twice", "grant-withdrawn"})
)
SILENT = 6  # things that may happen one after the other without a word


def told(change: Change) -> dict[str, Any]:
    """Return the row of a change."""
    row: dict[str, Any] = {"tells": TELLS[type(change)]}
    if not isinstance(change, Waiting):
        row["key"] = [change.task, change.serial]
    return row


def reproduce(trace: Sequence[Row], nodes: int = 2) -> None:
    """Raise Violation where no run of the simulated engine follows the trace, naming the first row that none reaches."""
    choices: list[list[int]] = []  # for each choice in the last run: the option chosen, and the number of options
    furthest, why = -1, ""
    for _ in range(RUNS):
        run = _Run(choices, nodes)
        try:
            run.through(trace)
        except _Elsewhere as other:
            if run.row > furthest:
                furthest, why = run.row, str(other)
        else:
            return
        while choices and choices[-1][0] + 1 >= choices[-1][1]:
            choices.pop()
        if not choices:
            break
        choices[-1][0] += 1
    rows = "\n".join(f"  {number}: {dict(row)}" for number, row in enumerate(trace[: furthest + 1]))
    raise Violation(f"the simulated engine never does row {furthest}: {why}\n{rows}")


class _Elsewhere(Exception):
    """This run does not lead where the trace does."""


class _Chosen:
    """A world of one run: time does not pass, and every chance is a choice."""

    def __init__(self, choices: list[list[int]]) -> None:
        self._choices, self._position = choices, 0
        self.now = 0.0
        self.lost_nodes: set[str] = set()
        self.truth = Truth(struck=Counter())
        self.rng = random.Random(0)
        self.due: list[tuple[Act, tuple[Any, ...]]] = []

    def choose(self, among: int) -> int:
        if self._position == len(self._choices):
            self._choices.append([0, among])
        self._position += 1
        return self._choices[self._position - 1][0]

    def at(self, delay: float, act: Act, *args: Any) -> None:
        self.due.append((act, args))

    def delay(self, rule: Rule) -> float:
        return rule.least

    def happens(self, name: str, rules: Mapping[str, Rule]) -> bool:
        return rules[name].chance > 0 and self.choose(2) == 1


class _Run:
    """One run of the simulated engine, by its choices."""

    def __init__(self, choices: list[list[int]], nodes: int) -> None:
        self.world = _Chosen(choices)
        self.row = 0
        self.engine = Engine(self.world, nodes, lambda container: None, self._stopped, lambda container: None, _KIND)  # type: ignore[arg-type]
        self._rows: deque[dict[str, Any]] = deque()
        self._epoch = 0
        self._containers: Containers

    def through(self, trace: Sequence[Row]) -> None:
        for self.row, row in enumerate(trace):
            if "do" in row:
                self._do(row["do"], [(task, serial) for task, serial in row["keys"]])
            elif "happens" in row:
                self._happens(row["happens"], row.get("key"))
            else:
                self._tells(row)

    def _do(self, verb: str, keys: list[tuple[str, int]]) -> None:
        if verb == "ask":
            self._containers.ask([Request(task, serial, "worker", int(task[-1]), 1, 1.0) for task, serial in keys])
        elif verb == "release":
            self._containers.release(keys[0])
        else:
            self._epoch += 1
            self._containers = Containers(self.world, self.engine, self._epoch, self._hear, lambda: True)  # type: ignore[arg-type]
            living = {container.key for container in self.engine.live}
            if living != set(keys):
                raise _Elsewhere(f"held are {sorted(living)}")
            self._containers.open(living)
            self._rows.clear()

    def _happens(self, event: str, key: Sequence[Any] | None) -> None:
        if event == "refuse":
            self.engine.refuses = True
        else:
            assert key is not None
            container = self.engine.of((key[0], key[1]))
            if container is None:
                raise _Elsewhere(f"there is no container of {key}")
            {"exit": self._stopped, "lost": self.engine.lose, "preempt": self.engine.preempt}[event](container)

    def _hear(self, *changes: Stimulus) -> None:
        self._rows += [told(cast(Change, change)) for change in changes]

    def _stopped(self, container: Container) -> None:
        self.engine.ended(container, -9)

    def _tells(self, row: Row) -> None:
        expected = {name: row[name] for name in ("tells", "key") if name in row}
        # At any time the engine may lack room.
        self.engine.closed_until = float("inf") if row["tells"] == "waiting" else 0.0
        for _ in range(SILENT):
            if self._rows:
                if (first := self._rows.popleft()) != expected:
                    raise _Elsewhere(f"it tells {first}")
                return
            if not self.world.due:
                raise _Elsewhere("it tells nothing more")
            act, args = self.world.due.pop(self.world.choose(len(self.world.due)))
            act(*args)
        raise _Elsewhere("it tells nothing for long")
