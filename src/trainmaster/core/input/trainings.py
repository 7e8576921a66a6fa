"""The shards of one input whose work is in the state that the members of an elastic training have, without I/O.

A step adds what all members have read to the state of each. A member reports a shard with the round that it is in and the last step that is
complete in its own state. Others of its round may be a step behind: they have all but the shards of the newest step. Each round begins with
the state of one member, whose step tells which shards are not in it: they are to be read again. Numbers of rounds only grow, over masters
too (`core.rendezvous`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.core.input.ranges import RangeSet

_BEGINS = 8  # rounds whose beginnings are known: a report comes late by one or two


class Training:
    """The shards in the state of one training."""

    def __init__(self) -> None:
        self.shards = RangeSet()
        self._step = 0  # the highest with which a shard was reported, or with which the round began
        self._newest = RangeSet()  # reported with that step
        self._begins: list[list[int]] = []  # [round, step]

    @property
    def round(self) -> int:
        """Return the newest round that has begun; 0 where none has."""
        return self._begins[-1][0] if self._begins else 0

    def holds(self, round_number: int, step: int) -> bool:
        """Tell whether what a member had made by a step of a round is in the training's state: a later round may have begun without it."""
        return all(step <= first for number, first in self._begins if number > round_number)

    def count(self, step: int, shards: RangeSet) -> None:
        """Note that shards were reported with a step."""
        self.shards.update(shards)
        if step > self._step:
            self._step, self._newest = step, RangeSet()
        if step == self._step:
            self._newest.update(shards)

    def beyond(self, step: int) -> RangeSet:
        """Return the shards that the state of a step may lack: all, where no member of the last round can be that far behind."""
        if step >= self._step:
            return RangeSet()
        return (self._newest if step == self._step - 1 else self.shards).copy()

    def begin(self, round_number: int, step: int) -> None:
        """Note that a round begins with the state of a step: all that is not taken back is in it."""
        if step != self._step:  # else its source may die before others have what that step had read
            self._step, self._newest = step, RangeSet()
        self._begins = [*self._begins[1 - _BEGINS :], [round_number, step]]

    def take_back(self, shards: RangeSet) -> None:
        """Forget shards that are to be read again."""
        self.shards.subtract(shards)
        self._newest.subtract(shards)

    def to_json(self) -> list[Any]:
        return [self.shards.to_json(), self._step, self._newest.to_json(), self._begins]

    @classmethod
    def from_json(cls, value: list[Any]) -> Training:
        training = cls()
        training.shards, training._newest = RangeSet.from_json(value[0]), RangeSet.from_json(value[2])
        training._step, training._begins = value[1], [list(begin) for begin in value[3]]
        return training


def training_name(role: str, rendezvous: str) -> str:
    """Return the name of the training of the members of a role that meet at a rendezvous."""
    return f"{role}/{rendezvous}"


class Trainings:
    """The trainings that read an input, by their names."""

    def __init__(self) -> None:
        self._by_name: dict[str, Training] = {}

    def of(self, name: str) -> Training:
        """Return a training for reading alone: an empty one where nothing is known of it."""
        return self._by_name.get(name) or Training()

    def begin(self, name: str, round_number: int, step: int) -> None:
        """Note that a round of a training begins with the state of a step."""
        self._by_name.setdefault(name, Training()).begin(round_number, step)

    def count(self, payload: Mapping[str, Any]) -> None:
        """Count the shards of an event `shards-done` whose work is in the state of members: its `states` say of which and when."""
        for name, _, step, ranges in payload.get("states") or [["", 0, 0, payload["ranges"]]]:
            self._by_name.setdefault(name, Training()).count(step, RangeSet.from_json(ranges))

    def superseded(self, payload: Mapping[str, Any]) -> RangeSet:
        """Return the shards of an event `shards-done` that are in no state: a round has begun without the member that reports them."""
        lacking = RangeSet()
        for name, round_number, step, ranges in payload.get("states", ()):
            if not self.of(name).holds(round_number, step):
                lacking.update(RangeSet.from_json(ranges))
        return lacking

    def take_back(self, shards: RangeSet) -> None:
        for training in self._by_name.values():
            training.take_back(shards)

    def to_json(self) -> dict[str, Any]:
        return {name: training.to_json() for name, training in self._by_name.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Trainings:
        trainings = cls()
        trainings._by_name = {name: Training.from_json(row) for name, row in value.items()}
        return trainings
