"""One input as a master keeps it: the table of its shards and their leases, together as in the master's turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trainmaster.core.input.leases import Leases
from trainmaster.core.input.shards import Shard, ShardTable
from trainmaster.core.machine.events import Event

Holder = tuple[str, int]  # a task and the number of its attempt


class Shards:
    """Attempts are barred by `write_off` alone."""

    def __init__(self, table: ShardTable, expected: Iterable[str] = ()) -> None:
        self.table, self.leases = table, Leases({table.name: table}, expected)
        self.barred: dict[str, int] = {}  # task -> its last attempt that is over

    def may_hold(self, holder: Holder) -> bool:
        return holder[1] > self.barred.get(holder[0], 0)

    def lease(self, holder: Holder, want: int) -> list[Shard]:
        return self.leases.lease(self.table.name, holder[0], want) if self.may_hold(holder) else []

    def give_back(self, holder: Holder, ranges: Any) -> None:
        self.leases.give_back(self.table.name, holder[0], ranges)

    def hold(self, holder: Holder, ranges: Any) -> list[list[int]]:
        holds = {self.table.name: ranges}
        return self.leases.hold(holder[0], holds, may_hold=self.may_hold(holder)).get(self.table.name, [])

    def write_off(self, holder: Holder) -> None:
        self.barred[holder[0]] = holder[1]
        self.leases.follow([Event(0, 0.0, 1, "attempt-written-off", {"task": holder[0], "attempt": holder[1]})])

    def report(self, holder: Holder, ranges: Any, records: Any = None) -> dict[str, Any] | None:
        """Take a report in; return the part that counts."""
        if not self.may_hold(holder):
            return None
        report = {"input": self.table.name, "ranges": ranges, "records": records}
        part = self.leases.held_part(holder[0], report)
        payload = self.table.done(*holder, part["ranges"], part["records"])
        if payload is not None:
            self.apply("shards-done", payload)
        return payload

    def apply(self, kind: str, payload: dict[str, Any]) -> None:
        self.table.apply(kind, payload)
        self.leases.follow([Event(0, 0.0, 1, kind, payload)])

    def answer(self, shards: Sequence[Shard]) -> dict[str, Any]:
        return self.leases.answer(self.table.name, shards)

    @property
    def figures(self) -> dict[str, int]:
        return {**self.table.figures, **self.leases.figures(self.table.name)}
