"""The share of one of N servers: its part of parameters and rows, the drafts that came, and what the order did with them.

*One order.* A push is a draft on each server, named (task, attempt, step). Server 0 decides its place: it makes *entries*, numbered from 1,
and every server handles the same entries one after another. So servers that have handled the same entries hold one version of all
parameters, and a push is applied on all of them or on none. An entry has "sequence", "time" and one of

    attempt [task, n]           a new attempt of a task: drafts of the former ones that are not committed are dropped
    commit name                 the draft was accepted, and waits for others of its version
    version v, of [names], staleness     makes version v, by applying the mean of these drafts
    drop name                   the draft was refused
    checkpoint v                a snapshot of version v is due
    complete v                  the checkpoint v is whole
    view name                   pulls that wait for this entry are answered by all servers, as they are here
    moving n, from [[address, ...], ...]     the rows are copied to the owners of a placement on n servers, from these; 0: no more
    placed n                    the last entry of this placement: the same order goes on among n servers
    job name                    from here on the workers are those of another job; drafts that wait get other names
    definition d                updates, and the optimizer's numbers, of a training that goes on from a former job's checkpoint

Drafts of a task come in the order of their names. An entry that settles a name drops the drafts of that task which came before it and were
not committed, for these were given up. A draft that comes after its name was settled is not held.

*Pure*: no files, sockets or clock. Checks come before the first change, so a draft that was taken can be applied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy

from .optimizers import stale_learning_rate, update_dense
from .placement import server_of_parameter
from .specification import definition_of
from .tables.table import LARGEST, Block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from .specification import Definition
    from .tables.table import Table

    Arrays = Mapping[str, NDArray[Any]]
    Entry = dict[str, Any]
    Name = tuple[str, int, int]

DENSE, IDS, ROWS = "dense:", "ids:", "rows:"  # prefixes of arrays' names, before a parameter's or a table's
FORMER = "former "  # prefix of a task's name in the drafts that wait since a former job; no worker has it
_EVICTED_WITHIN = 600.0  # s after which an unused row is removed, at most
NEVER = (0, 0)  # attempt and step before the first


class BadPush(ValueError):
    """A pull or a push that does not fit what the servers hold."""


class NoMemory(BadPush):
    """There is no memory for new rows."""


class NotFinite(BadPush, FloatingPointError):
    """A gradient that is not finite."""


@dataclass
class Draft:
    """A push as one server has it. `base`: the version that its gradients were computed from. `arrays`: by prefix and name."""

    name: Name
    base: int
    arrays: dict[str, NDArray[Any]]
    rate: float | None = None
    is_committed: bool = False


@dataclass
class Settled:
    """How the newest settled push of a task ended."""

    attempt: int
    step: int
    is_accepted: bool

    @property
    def name(self) -> tuple[int, int]:
        return self.attempt, self.step


@dataclass
class Shard:
    """The share of server `index` of `servers`."""

    index: int
    servers: int
    version: int = 0
    sequence: int = 0
    definition: Definition | None = None
    tables: dict[str, Table] = field(default_factory=dict)
    dense: dict[str, NDArray[numpy.float32]] = field(default_factory=dict)
    slots: dict[str, list[NDArray[numpy.float32]]] = field(default_factory=dict)
    drafts: dict[Name, Draft] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    settled: dict[str, Settled] = field(default_factory=dict)
    applied: int = 0  # drafts, since the first version
    initial: dict[str, NDArray[Any]] = field(default_factory=dict)  # on server 0, all values that it was defined with
    completed: int = -1  # the version of the newest whole checkpoint; -1: none
    room: Callable[[], float] = lambda: math.inf  # returns the bytes of memory that new rows may take
    evict_at: dict[str, float] = field(default_factory=dict)  # by table, when unused rows are looked for
    job: str = ""  # a name of the job whose workers push
    is_inherited: bool = False  # the definition is a former job's
    placed: int = 0  # the servers among which the order goes on; 0: these

    def inherit(self, job: str = "") -> None:
        """Take what is here as a former job's, for another one: forget its workers, and what they pushed without an end.

        Their pushes wait on, under names that the next job's workers do not have, since those workers' attempts begin anew.
        """
        self.job, self.is_inherited = job, self.definition is not None
        self.attempts, self.settled = {}, {}
        kept = [replace(draft, name=(FORMER + draft.name[0], *draft.name[1:])) for draft in self.waiting()]
        self.drafts = {draft.name: draft for draft in kept}

    def define(self, definition: Definition, values: Arrays) -> None:
        """Take the definition, and those of the initial values that belong here. Raises BadPush."""
        for name, shape in definition.dense.items():
            if name not in values or values[name].shape != shape:
                raise BadPush(f"parameter {name!r} needs initial values of shape {shape}")
        self.definition = definition
        if self.index == 0 and self.servers > 1:
            self.initial = {name: numpy.array(values[name], numpy.float32) for name in definition.dense}
        self.tables = {name: definition.make_table(name) for name in definition.tables}
        for name in definition.dense:
            if self.owns(name):
                value = numpy.array(values[name], numpy.float32, order="C")
                initial = definition.optimizer.slots.values()
                self.dense[name] = value
                self.slots[name] = [numpy.full(value.shape, number, numpy.float32) for number in initial]

    def redefine(self, definition: Definition) -> None:
        """Go on with another definition, which has no conflict with the present one."""
        self.definition, self.is_inherited = definition, False
        for table in self.tables.values():
            table.optimizer = definition.optimizer

    def check_seed(self, arrays: Arrays) -> None:
        """Raise BadPush where `seed` cannot take all of these rows."""
        for name, ids in _by_table(arrays):
            rows, dimension = arrays.get(ROWS + name), self._table(name).dimension
            self._check_range(name, self._placed(name, ids))
            if rows is None or rows.dtype != numpy.float32 or rows.shape != (len(ids), dimension):
                raise BadPush(f"table {name!r} needs float32 rows of {dimension} numbers, one for each id")
            if len(numpy.unique(ids)) != len(ids):
                raise BadPush(f"ids of table {name!r} repeat within {len(ids)} ids that must differ")
            self._check_room(name, ids)

    def seed(self, arrays: Arrays, now: float) -> None:
        """Put rows into tables, by prefix and name: those that a training begins with, which were checked."""
        assert self.definition is not None
        for name, ids in _by_table(arrays):
            rows, initial = arrays[ROWS + name], self.definition.optimizer.slots.items()
            slots = {slot: numpy.full(rows.shape, number, numpy.float32) for slot, number in initial}
            self.tables[name].load(Block(ids, rows, slots, numpy.full(len(ids), int(now), numpy.uint32)))

    def owns(self, parameter: str) -> bool:
        return server_of_parameter(parameter, self.servers) == self.index

    def pull(self, dense: Sequence[str] | None, arrays: Arrays, now: float) -> dict[str, NDArray[Any]]:
        """Return the rows of the ids in `arrays`, and parameters of this server (None: all), by prefix and name. Raises BadPush."""
        pulled: dict[str, NDArray[Any]] = {}
        for key, ids in arrays.items():
            name = key.removeprefix(IDS)
            placed = self._placed(name, ids)
            self._check_room(name, placed)
            pulled[ROWS + name] = self._table(name).pull(placed, now)
        for name in self.dense if dense is None else dense:
            if name not in self.dense:
                raise BadPush(f"server {self.index} of {self.servers} has no parameter {name!r}")
            pulled[DENSE + name] = self.dense[name].copy()  # it may wait to be sent while a push comes
        return pulled

    def ids_of(self, table: str) -> NDArray[numpy.int64]:
        """Return the ids that have a row here, ascending. Raises BadPush."""
        return self._table(table).ids()

    def is_late(self, name: Name) -> bool:
        """Tell whether a push came to its end, or can come to none, as a newer attempt of its task is there."""
        task, *number = name
        settled = self.settled.get(task)
        return number[0] < self.attempts.get(task, 0) or (settled is not None and tuple(number) <= settled.name)

    def hold(self, draft: Draft) -> None:
        """Keep a draft until the order says what becomes of it. Raises BadPush."""
        if draft.name in self.drafts or self.is_late(draft.name):
            return
        self._check(draft)
        self.drafts[draft.name] = draft

    def handle(self, entry: Entry) -> None:
        """Do what the next entry of the order says."""
        if entry["sequence"] != self.sequence + 1:
            raise AssertionError(f"entry {entry['sequence']} came after entry {self.sequence}")
        if "version" in entry:
            drafts = [self._draft(_name(name)) for name in entry["of"]]
            self._apply(drafts, entry["version"], entry["staleness"], entry["time"])
            for draft in drafts:
                self._settle(draft.name, True)
                self.drafts.pop(draft.name)
            self.version = entry["version"]
            self.applied += len(drafts)
        elif "commit" in entry:
            name = _name(entry["commit"])
            self._draft(name).is_committed = True
            self._settle(name, True)
        elif "drop" in entry:
            name = _name(entry["drop"])
            self._settle(name, False)
            self.drafts.pop(name, None)
        elif "attempt" in entry:
            task, attempt = entry["attempt"]
            self.attempts[task] = attempt
            self._give_up(task, (attempt, 0))
        elif "complete" in entry:
            self.completed = entry["complete"]
        elif "placed" in entry:
            self.placed = entry["placed"]
        elif "job" in entry:
            self.inherit(entry["job"])
        elif "definition" in entry:
            self.redefine(definition_of(entry["definition"]))
        self.sequence = entry["sequence"]

    def newest_use(self) -> int:
        """Return the latest second of use of any row so far."""
        return max((table.newest_use for table in self.tables.values()), default=0)

    def due_evictions(self, now: float) -> Iterator[dict[str, NDArray[numpy.int64]]]:
        """Yield the ids to evict of each table whose unused rows are to be looked for now."""
        assert self.definition is not None
        for name, spec in self.definition.tables.items():
            if spec.evict_unused is None or now < self.evict_at.get(name, 0.0):
                continue
            self.evict_at[name] = now + min(spec.evict_unused / 10, _EVICTED_WITHIN)
            ids = self.tables[name].unused_ids(spec.evict_unused, now)
            if len(ids):
                yield {IDS + name: ids}

    def evict(self, arrays: Arrays) -> None:
        """Remove rows: ids by prefix and name; those of other servers are not here anyway."""
        for key, ids in arrays.items():
            self.tables[key.removeprefix(IDS)].remove(ids)

    def figures(self) -> dict[str, Any]:
        """Return what there is to tell of the share: versions, entries, drafts, and rows and bytes of each table."""
        memories = {name: table.memory() for name, table in self.tables.items()}
        return {
            "version": self.version, "completed": self.completed, "applied": self.applied, "sequence": self.sequence,
            "drafts": len(self.drafts),
            "tables": {
                name: {"rows": memory.rows, "numbers": memory.numbers, "total": memory.total}
                for name, memory in memories.items()
            },
        }  # fmt: skip

    def waiting(self) -> list[Draft]:
        """Return the drafts that are committed, and wait for others of their version, in their order."""
        return [draft for draft in self.drafts.values() if draft.is_committed]

    # -- below --

    def _settle(self, name: Name, is_accepted: bool) -> None:
        task, attempt, step = name
        settled = self.settled.get(task)
        if settled is None or settled.name < (attempt, step):
            self.settled[task] = Settled(attempt, step, is_accepted)
            self._give_up(task, (attempt, step))

    def _give_up(self, task: str, before: tuple[int, int]) -> None:
        lost = [
            name
            for name, draft in self.drafts.items()
            if name[0] == task and name[1:] < before and not draft.is_committed
        ]
        for name in lost:
            del self.drafts[name]

    def _draft(self, name: Name) -> Draft:
        if name not in self.drafts:
            task, attempt, step = name
            raise LostDraft(
                f"server {self.index} of {self.servers} does not have push {step} of {task}, attempt {attempt}, which the order applies"
            )
        return self.drafts[name]

    def _apply(self, drafts: Sequence[Draft], version: int, staleness: int, now: float) -> None:
        assert self.definition is not None
        rate = next((draft.rate for draft in drafts if draft.rate is not None), self.definition.optimizer.learning_rate)
        if self.definition.updates.is_modulated:
            rate = stale_learning_rate(rate, staleness)
        for name in {key.removeprefix(IDS): None for draft in drafts for key in draft.arrays if key.startswith(IDS)}:
            holders = [draft for draft in drafts if IDS + name in draft.arrays]
            ids = _joined([draft.arrays[IDS + name] for draft in holders])
            gradients = _mean_of([draft.arrays[ROWS + name] for draft in holders], len(drafts))
            self.tables[name].push(ids, gradients, version, now, rate)
        for name in {
            key.removeprefix(DENSE): None for draft in drafts for key in draft.arrays if key.startswith(DENSE)
        }:
            parts = [draft.arrays[DENSE + name] for draft in drafts if DENSE + name in draft.arrays]
            total = numpy.array(parts[0], numpy.float32, order="C")
            for part in parts[1:]:
                total += part
            if len(drafts) > 1:
                total /= len(drafts)
            update_dense(self.definition.optimizer, self.dense[name], total, self.slots[name], version, rate)

    def _check(self, draft: Draft) -> None:
        if self.definition is None:
            raise BadPush("nothing is defined yet")
        if draft.base > self.version and self.index == 0:
            raise BadPush(f"a push of version {draft.base}, where the newest is {self.version}")
        if draft.rate is not None and not 0 <= draft.rate <= LARGEST:
            raise BadPush(f"the learning rate of a push is {draft.rate}")
        for key, array in draft.arrays.items():
            if key.startswith(DENSE):
                name = key.removeprefix(DENSE)
                if name not in self.dense or array.shape != self.dense[name].shape:
                    raise BadPush(
                        f"server {self.index} of {self.servers} has no parameter {name!r} of shape {array.shape}"
                    )
                _check_gradient(name, array)
            elif key.startswith(ROWS):
                name = key.removeprefix(ROWS)
                ids = self._placed(name, draft.arrays.get(IDS + name))
                dimension = self._table(name).dimension
                if array.shape != (len(ids), dimension):
                    raise BadPush(
                        f"table {name!r} needs gradients of {(len(ids), dimension)}, and they have {array.shape}"
                    )
                self._check_range(name, ids)
                self._check_room(name, ids)
                _check_gradient(name, array)
            elif not key.startswith(IDS) or ROWS + key.removeprefix(IDS) not in draft.arrays:
                raise BadPush(f"an array {key!r} in a push")

    def _check_range(self, name: str, ids: NDArray[Any]) -> None:
        limit = self._table(name).input_dim
        if limit is not None and len(ids) and (ids.min() < 0 or ids.max() >= limit):
            wrong = ids[(ids < 0) | (ids >= limit)][0]
            raise BadPush(f"table {name!r} has ids from 0 to {limit - 1}, and one is {wrong}")

    def _check_room(self, name: str, ids: NDArray[Any]) -> None:
        table, left = self._table(name), self.room()
        if len(ids) * table.row_bytes <= left:
            return
        missing = table.missing(ids)
        if missing and missing * table.row_bytes > left:
            raise NoMemory(
                f"server {self.index} of {self.servers} has no memory for {missing:,} more rows of table {name!r}: it has"
                f" {len(table):,}, of {table.row_bytes} bytes each, and {max(0, left) / 2**20:,.0f} MiB are left for rows;"
                " give it more memory, more servers to share the rows, or the table a limit for rows that nobody uses (evict_unused)"
            )

    def _placed(self, name: str, ids: NDArray[Any] | None) -> NDArray[Any]:
        """Return the ids, which all must belong to this server."""
        if ids is None or ids.ndim != 1 or ids.dtype != numpy.int64:
            raise BadPush(f"the ids of table {name!r} must be int64, in one dimension")
        if self.servers > 1 and len(ids) and (ids % self.servers != self.index).any():
            raise BadPush(
                f"rows of table {name!r} were sent to server {self.index} of {self.servers} that belong to another one:"
                " the worker places them in another way"
            )
        return ids

    def _table(self, name: str) -> Table:
        if name not in self.tables:
            raise BadPush(f"there is no table {name!r}; there are {', '.join(self.tables) or 'none'}")
        return self.tables[name]


class LostDraft(RuntimeError):
    """The order names a draft that a server does not have: its log was lost."""


def owned_arrays(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return copies, of views that will hold something else."""
    return {name: array.copy() for name, array in arrays.items()}


def _by_table(arrays: Arrays) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield each table's name and ids."""
    return ((key.removeprefix(IDS), ids) for key, ids in arrays.items() if key.startswith(IDS))


def _name(plain: Iterable[Any]) -> Name:
    task, attempt, step = plain
    return task, attempt, step


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else numpy.concatenate(parts)


def _mean_of(parts: Sequence[NDArray[Any]], count: int) -> NDArray[Any]:
    joined = _joined(parts)
    return joined if count == 1 else joined.astype(numpy.float32) / numpy.float32(count)


def _check_gradient(name: str, array: NDArray[Any]) -> None:
    if array.dtype.kind != "f":
        raise BadPush(f"gradients of {name!r} must be float32 or float16, and are {array.dtype}")
    if not numpy.isfinite(array).all():
        raise NotFinite(f"a gradient of {name!r} is not finite")
