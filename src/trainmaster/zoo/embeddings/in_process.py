"""Tables and parameters in this process: a client of parameter servers that needs no servers.

It is `ps.client.Client` with the one share of one server, and whatever that does with a push is what servers do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from ...ps.client import Client, Identity, Servers
from ...ps.errors import ServerError
from ...ps.order import decide
from ...ps.shard import IDS, BadPush, Draft, Shard
from ...ps.specification import BadDefinition, definition_of
from ...ps.tables.clock import Clock
from ...ps.tables.memory import memory_left
from ...ps.tables.table import BadIds, Block
from ...ps.wire.connections import Message
from ..errors import BadModel

if TYPE_CHECKING:
    from ...ps.client import Header, Request

_TASK = "worker:0"


class _Here(Servers):
    """The one server that is this process. `answered`: returns its answer."""

    def __init__(
        self, find: Callable[[], Any], identity: Identity, answered: Callable[[Header, Mapping[str, Any]], Message]
    ) -> None:
        super().__init__(find, identity, 0.0)
        self._answered = answered

    def again(self) -> Servers:
        return self

    def ask(self, requests: Callable[[int], Sequence[Request]], *, is_together: bool = False) -> list[Message]:
        ((header, arrays),) = requests(1)
        try:
            return [self._answered(header, arrays)]
        except FloatingPointError:
            raise
        except (BadPush, BadIds) as error:
            raise ServerError(str(error)) from None


class InProcess(Client):
    """A client whose one server is a share in this process."""

    def __init__(self, shard: Shard | None = None) -> None:
        super().__init__([""], Identity("", task=_TASK))
        self._shard = shard or Shard(0, 1)
        self._shard.room = memory_left
        self._now = Clock(self._shard.newest_use())

    def _reached(self, find: Callable[[], Any], patience: float) -> Servers:
        return _Here(find, self._identity, self._answered)

    def _answered(self, header: dict[str, Any], arrays: Mapping[str, Any]) -> Message:
        shard, op = self._shard, header["op"]
        answer: dict[str, Any] = {}
        result: dict[str, Any] = {}
        if op == "define":
            proposed = definition_of(header["definition"])
            if shard.definition is None:
                shard.define(proposed, arrays)
            elif conflict := shard.definition.conflict(proposed):
                raise BadDefinition(f"their checkpoint is of another model or optimizer: {conflict} now")
            else:
                shard.redefine(proposed)
        elif op == "definition":
            assert shard.definition is not None
            answer["definition"] = shard.definition.to_plain()
        elif op == "seed":
            shard.check_seed(arrays)
            shard.seed(arrays, self._now())
        elif op == "pull":
            result = shard.pull(header["dense"], arrays, self._now())
        elif op == "ids":
            result = {IDS + header["table"]: shard.ids_of(header["table"])}
        elif op == "flush":
            pass  # each push is a version
        else:
            assert op == "draft"
            name = (_TASK, 1, header["step"])
            shard.hold(Draft(name, header["base"], dict(arrays), header["rate"]))
            decision = decide(shard, name)
            for entry in decision.entries:
                shard.handle({**entry, "sequence": shard.sequence + 1, "time": int(self._now())})
            for unused in shard.due_evictions(self._now()):
                shard.evict(unused)
            answer["why"] = decision.why
            result = shard.pull(None, {}, self._now()) if header["is_pull"] else {}
        return Message({**answer, "version": shard.version}, result, 0)

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint must have, as arrays and numbers."""
        shard = self._shard
        tables = {}
        for name, table in shard.tables.items():
            blocks = list(table.blocks()) or [_empty(table)]
            tables[name] = {
                "ids": numpy.concatenate([block.ids for block in blocks]),
                "values": numpy.concatenate([block.values for block in blocks]),
                "slots": {
                    slot: numpy.concatenate([block.slots[slot] for block in blocks]) for slot in table.optimizer.slots
                },
            }
        return {
            "version": shard.version, "dense": dict(shard.dense), "tables": tables,
            "slots": {name: list(slots) for name, slots in shard.slots.items()},
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `state` returned, once all is defined. Raises BadModel where it is another model's."""
        shard = self._shard
        if {*state["dense"]} != {*shard.dense} or {*state["tables"]} != {*shard.tables}:
            raise BadModel("the checkpoint is of another model: its parameters or tables have other names")
        try:
            for name, values in state["dense"].items():
                shard.dense[name][...] = values
                for slot, numbers in zip(shard.slots[name], state["slots"][name], strict=True):
                    slot[...] = numbers
            for name, table in state["tables"].items():
                used = numpy.full(len(table["ids"]), int(self._now()), numpy.uint32)
                shard.tables[name].load(Block(table["ids"], table["values"], table["slots"], used))
        except ValueError as error:
            raise BadModel(f"the checkpoint is of another model or optimizer: {error}") from None
        shard.version = self.version = int(state["version"])


def _empty(table: Any) -> Block:
    rows = numpy.zeros((0, table.dimension), numpy.float32)
    return Block(numpy.zeros(0, numpy.int64), rows, dict.fromkeys(table.optimizer.slots, rows), rows[:, 0])
