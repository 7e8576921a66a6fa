"""Embedding tables: any sequence of calls gives what a dict of rows gives, and a refused call changes nothing."""

from __future__ import annotations

import select
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.ps.initializers import Normal, Uniform, table_key, zeros
from trainmaster.ps.optimizers import FTRL, SGD, Adagrad, Adam
from trainmaster.ps.shard import Shard
from trainmaster.ps.specification import Definition, TableSpec, Updates
from trainmaster.ps.storage.checkpoints import Share, load_share, share_name
from trainmaster.ps.storage.snapshots import Snapshots
from trainmaster.ps.tables.arena import Arena
from trainmaster.ps.tables.table import BadIds, Block, Frozen, Table

DIMENSION = 3
OPTIMIZERS = [SGD(0.1), SGD(0.1, momentum=0.9), Adam(0.1), Adagrad(0.1), FTRL(0.1)]
IDS = st.lists(st.integers(-6, 12) | st.integers(-(2**63), 2**63 - 1), max_size=12)


def table_of(optimizer: Any = OPTIMIZERS[2], block_rows: int = 4, **options: Any) -> Table:
    return Table("user", DIMENSION, Normal(), optimizer, seed=3, block_rows=block_rows, **options)


class Model:
    """The same table as a dict: id -> [values, slots, last second of use]."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.rows = optimizer, dict[int, list[Any]]()

    def touch(self, number: int, now: float) -> list[Any]:
        if number not in self.rows:
            values = Normal().rows(table_key(3, "user"), numpy.array([number]), DIMENSION)[0]
            slots = [numpy.full(DIMENSION, initial, numpy.float32) for initial in self.optimizer.slots.values()]
            self.rows[number] = [values, slots, 0]
        self.rows[number][2] = int(now)
        return self.rows[number]

    def push(self, ids: list[int], gradients: Any, step: int, now: float) -> int:
        sums: dict[int, Any] = {}
        for number, gradient in zip(ids, gradients, strict=True):
            sums[number] = sums[number] + gradient if number in sums else gradient
        for number, gradient in sums.items():
            values, slots, _ = self.touch(number, now)
            self.optimizer.apply(values, gradient, slots, step, self.optimizer.learning_rate)
        return len(sums)

    def evict(self, unused: float, now: float) -> int:
        old = [number for number, row in self.rows.items() if now - (row[2] + 1) >= unused]
        for number in old:
            del self.rows[number]
        return len(old)


def assert_equal(table: Table, model: Model, rows: int = 5) -> None:
    seen = []
    for block in table.blocks(rows):
        assert 0 < len(block.ids) <= rows
        for place, number in enumerate(block.ids.tolist()):
            values, slots, last_used = model.rows[number]
            assert (block.values[place] == values).all()
            assert all((slot[place] == other).all() for slot, other in zip(block.slots.values(), slots, strict=True))
            assert block.last_used[place] == last_used
            seen.append(number)
    assert sorted(seen) == sorted(model.rows)
    assert len(table) == len(seen)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["pull", "push", "push", "evict", "remove", "move"]), IDS, st.integers(0, 2**32 - 1)),
    max_size=14,
)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@given(ACTIONS)
@settings(max_examples=40, deadline=None)
def test_any_sequence_of_calls_gives_what_a_dict_gives(
    optimizer: Any, actions: list[tuple[str, list[int], int]]
) -> None:
    table, model = table_of(optimizer), Model(optimizer)
    now = 1000.0
    for step, (action, ids, seed) in enumerate(actions, 1):
        generator = numpy.random.default_rng(seed)
        now += float(generator.uniform(0, 3))
        if action == "pull":
            expected = [model.touch(number, now)[0] for number in ids]
            values = table.pull(numpy.array(ids, numpy.int64), now)
            assert values.shape == (len(ids), DIMENSION)
            assert all((row == other).all() for row, other in zip(values, expected, strict=True))
        elif action == "push":
            gradients = (
                generator.integers(-16, 17, (len(ids), DIMENSION)).astype(numpy.float32) / 8
            )  # their sums are exact
            count = table.push(numpy.array(ids, numpy.int64), gradients, step, now)
            assert count == model.push(ids, gradients, step, now)
        elif action == "evict":
            assert table.evict(4.0, now) == model.evict(4.0, now)
        elif action == "remove":
            count = table.remove(numpy.array(sorted({*ids}), numpy.int64))
            assert count == sum(model.rows.pop(number, None) is not None for number in {*ids})
        else:  # to a table that has other blocks, and some of the rows already
            moved = table_of(optimizer, block_rows=7)
            moved.pull(numpy.array(ids, numpy.int64), now)
            moved.remove(numpy.array(sorted({*ids} - {*model.rows}), numpy.int64))
            for block in table.blocks(4):
                moved.load(block)
            table = moved
        assert_equal(table, model)


def test_every_server_makes_the_same_row_in_whatever_order() -> None:
    ids = numpy.arange(-500, 500)
    first, second = table_of(), table_of(block_rows=2**10)
    values = first.pull(ids)
    backwards = numpy.concatenate([second.pull(part) for part in numpy.split(ids[::-1], 10)])
    assert (values == backwards[::-1]).all()
    assert (Table("item", DIMENSION, Normal(), SGD(), seed=3).pull(ids) != values).any()
    assert (Table("user", DIMENSION, Normal(), SGD(), seed=4).pull(ids) != values).any()


def test_a_row_that_was_evicted_comes_back_as_at_first_in_memory_that_is_used_again() -> None:
    table = table_of()
    ids = numpy.arange(100)
    values = table.pull(ids, now=10.0)
    table.push(ids, numpy.ones((100, DIMENSION)), step=1, now=10.5)
    before = table.memory()
    assert table.evict(60.0, now=70.9) == 0  # not early, though of the use at 10.5 only 10 is known
    assert table.evict(60.0, now=71.0) == 100
    assert len(table) == table.memory().rows == table.memory().numbers == table.memory().per_row == 0
    assert (table.pull(ids, now=80.0) == values).all()
    assert all((slot == 0).all() for block in table.blocks() for slot in block.slots.values())
    assert table.memory() == before


def test_rows_that_nobody_uses_are_found_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of()
    assert not len(table.unused_ids(5.0, 100.0))
    table.pull(list(range(10)), 1.0)
    table.remove([2, 7, 9])
    table.pull([7, 20], 1.0)  # one of them in a row that it did not have
    table.pull([3], 50.0)
    monkeypatch.setattr("trainmaster.ps.tables.table._LOOKED_AT", 4)
    assert sorted(table.unused_ids(5.0, 100.0)) == [0, 1, 3, 4, 5, 6, 7, 8, 20]
    assert sorted(table.unused_ids(50.0, 100.0)) == [0, 1, 4, 5, 6, 7, 8, 20]


def test_a_push_sums_the_gradients_of_an_id_and_takes_another_learning_rate() -> None:
    table = Table("user", 2, zeros(), SGD(0.5))
    assert table.push([7, -7, 7], [[1, 2], [3, 4], [5, 6]], step=1) == 2
    assert table.pull([7, -7, 7]).tolist() == [[-3.0, -4.0], [-1.5, -2.0], [-3.0, -4.0]]
    table.push(numpy.array([7], numpy.int32), numpy.ones((1, 2), numpy.float16), step=2, learning_rate=1.0)
    assert table.pull([7]).tolist() == [[-4.0, -5.0]]


def test_a_row_with_the_slots_of_adam_takes_at_most_a_quarter_more_than_its_numbers() -> None:
    table = Table("user", 16, Uniform(), Adam())
    for number in range(60):
        table.pull(numpy.arange(2000) + 2000 * number)
        memory = table.memory()
        assert memory.rows == 2000 * (number + 1)
        assert memory.numbers == memory.rows * 16 * 3 * 4
        assert memory.numbers < memory.total <= 1.25 * memory.numbers
        assert memory.per_row == memory.total / memory.rows


# -- bad input --


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            [0, 1, 100, -5],
            "table 'user' has ids from 0 to 99, and 2 of 4 ids are outside: the first is 100, at position 2",
        ),
        ([-1], "table 'user' has ids from 0 to 99, and 1 of 1 ids are outside: the first is -1, at position 0"),
        ([0.5], "ids of table 'user' must be whole numbers in one dimension, and are float64 of shape \\(1,\\)"),
        ([[1]], "ids of table 'user' must be whole numbers in one dimension, and are int64 of shape \\(1, 1\\)"),
        ([True], "ids of table 'user' must be whole numbers in one dimension, and are bool of shape \\(1,\\)"),
    ],
)
def test_ids_that_a_table_cannot_have_are_refused_and_change_nothing(ids: Any, message: str) -> None:
    table = table_of(input_dim=100)
    gradients = numpy.zeros((len(ids), DIMENSION), numpy.float32)
    slots = {"momentum": gradients, "velocity": gradients}
    last_used = numpy.zeros(len(ids), numpy.uint32)
    for call in (
        lambda: table.pull(ids),
        lambda: table.push(ids, gradients, step=1),
        lambda: table.remove(ids),
        lambda: table.load(Block(numpy.array(ids), gradients, slots, last_used)),
    ):
        with pytest.raises(BadIds, match=f"^{message}$"):
            call()
    assert len(table) == 0


def test_a_table_without_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of table 'user' needs at least 1 number, and dimension is 0"):
        Table("user", 0, zeros(), SGD())


def test_ids_of_a_table_without_bounds_are_64_bits() -> None:
    table = table_of()
    assert table.pull(numpy.array([2**63 - 1], numpy.uint64)).shape == (1, DIMENSION)
    with pytest.raises(BadIds, match="must be below 2\\*\\*63, and one is 9223372036854775808"):
        table.pull(numpy.array([2**63], numpy.uint64))
    assert table.pull([]).shape == (0, DIMENSION)
    assert table.push([], numpy.zeros((0, DIMENSION)), step=1) == 0
    assert len(table) == 1


def test_gradients_that_would_spoil_rows_are_refused_and_change_nothing() -> None:
    table = table_of()
    bad = numpy.zeros((3, DIMENSION), numpy.float32)
    bad[1, 2] = numpy.nan
    with pytest.raises(
        FloatingPointError, match="1 of 3 gradients for table 'user' are not finite: the first is at position 1"
    ):
        table.push([1, 2, 3], bad, step=1)
    with pytest.raises(ValueError, match="needs gradients of shape \\(2, 3\\), and they have \\(3, 3\\)"):
        table.push([1, 2], numpy.zeros((3, DIMENSION)), step=1)
    with pytest.raises(ValueError, match="the first step of table 'user' is 1, and a push has step 0"):
        table.push([1], numpy.zeros((1, DIMENSION)), step=0)
    assert len(table) == 0


def test_rows_of_another_kind_of_table_are_refused_and_change_nothing() -> None:
    table = table_of()
    values, last_used = numpy.zeros((2, DIMENSION), numpy.float32), numpy.zeros(2, numpy.uint32)
    slots = {"momentum": values, "velocity": values}
    with pytest.raises(BadIds, match="ids of table 'user' repeat within 2 ids that must differ"):
        table.load(Block(numpy.array([1, 1]), values, slots, last_used))
    with pytest.raises(BadIds, match="repeat within 2 ids"):
        table.remove([1, 1])
    with pytest.raises(ValueError, match="momentum, velocity; the block has values \\(2, 3\\), accumulator \\(2, 3\\)"):
        table.load(Block(numpy.array([1, 2]), values, {"accumulator": values}, last_used))
    with pytest.raises(ValueError, match="rows of \\(3,\\) and momentum, velocity; the block has values \\(2, 2\\)"):
        table.load(Block(numpy.array([1, 2]), values[:, :2], slots, last_used))
    assert len(table) == 0


# -- rows as they were at one moment, while the table changes --


def act(table: Table, action: str, ids: list[int], step: int, now: float) -> None:
    """Change a table in one of the ways that there are."""
    distinct = numpy.array(sorted({*ids}), numpy.int64)
    numbers = numpy.random.default_rng(step).normal(size=(len(ids), DIMENSION)).astype(numpy.float32)
    if action == "pull":
        table.pull(distinct, now)
    elif action == "push":
        table.push(numpy.array(ids, numpy.int64), numbers, step, now)
    elif action == "evict":
        table.evict(3.0, now)
    elif action == "remove":
        table.remove(distinct)
    else:
        slots = {name: abs(numbers[: len(distinct)]) for name in table.optimizer.slots}
        last_used = numpy.full(len(distinct), int(now), numpy.uint32)
        table.load(Block(distinct, numbers[: len(distinct)], slots, last_used))


def rows_of(blocks: Iterator[Block]) -> dict[int, bytes]:
    """Return all that is known of each id."""
    rows = {}
    for block in blocks:
        for place, number in enumerate(block.ids.tolist()):
            assert number not in rows
            numbers = [block.values[place], *(slot[place] for slot in block.slots.values()), block.last_used[place]]
            rows[number] = b"".join(array.tobytes() for array in numbers)
    return rows


class TornArena:
    """An arena whose copies have parts of each row from before `change` is called, and parts from behind it."""

    def __init__(self, arena: Arena, change: Callable[[], None]) -> None:
        self.width, self.block_rows = arena.width, arena.block_rows
        self._arena, self._change = arena, change

    def copy(self, begin: int, end: int) -> Any:
        values = self._arena.copy(begin, end)
        self._change()
        values[:, 1:] = self._arena.copy(begin, end)[:, 1:]
        self._change()
        return values


CHANGES = st.lists(
    st.tuples(st.sampled_from(["pull", "push", "push", "evict", "remove", "load", "freeze"]), IDS), max_size=20
)


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adam(0.1)], ids=str)
@given(CHANGES, CHANGES, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_frozen_rows_are_those_of_their_moment_whatever_the_table_does_meanwhile(
    optimizer: Any, before: list[tuple[str, list[int]]], meanwhile: list[tuple[str, list[int]]], random: Any
) -> None:
    """The table changes between two blocks and while a block is copied. Several frozen tables are read in turn."""
    table = table_of(optimizer)
    for step, (action, ids) in enumerate(before, 1):
        act(table, action.replace("freeze", "push"), ids, step, 1000.0 + step)
    changes = enumerate(meanwhile, 1 + len(before))
    pending: list[tuple[dict[int, bytes], Frozen, list[Block], Iterator[Block]]] = []

    def change() -> None:
        for step, (action, ids) in changes:
            if action == "freeze":
                freeze()
            else:
                act(table, action, ids, step, 1000.0 + step)
            if random.random() < 0.5:
                return

    def freeze() -> None:
        frozen = table.freeze()
        expected = rows_of(table.blocks())
        frozen._arenas = [TornArena(arena, change) for arena in frozen._arenas]  # type: ignore[misc]
        pending.append((expected, frozen, [], frozen.blocks(random.randint(1, 6))))

    freeze()
    while pending:
        expected, frozen, blocks, rest = chosen = random.choice(pending)
        block = next(rest, None)
        if block is None:
            table.thaw(frozen)
            pending.remove(chosen)
            assert rows_of(iter(blocks)) == expected
        else:
            blocks.append(block)
        change()
    assert not table._frozen


def test_memory_of_rows_that_were_put_aside_is_used_again() -> None:
    table = table_of(block_rows=64)
    table.pull(numpy.arange(1000))
    expected = rows_of(table.blocks())
    frozen, blocks = table.freeze(), list[Block]()
    for step, block in enumerate(frozen.blocks(10), 1):
        blocks.append(block)
        ids = numpy.arange(10 * step, min(10 * step + 20, 1000))
        table.push(ids, numpy.ones((len(ids), DIMENSION)), step)
    table.thaw(frozen)
    assert rows_of(iter(blocks)) == expected
    assert frozen._end <= 40


def shard_of(rows: int) -> tuple[Shard, Any]:
    shard, ids = Shard(0, 1), numpy.arange(rows)
    shard.define(Definition({}, {"user": TableSpec(DIMENSION)}, Adam(0.1), Updates()), {})
    shard.tables["user"].pull(ids)
    return shard, ids


def test_a_share_is_that_of_its_moment_while_a_thread_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainmaster.ps.tables.table._BATCH", 2**14)

    def digest(of: Shard) -> int:
        return zlib.crc32(repr(sorted(rows_of(of.tables["user"].blocks()).items())).encode())

    shard, ids = shard_of(20_000)
    generator = numpy.random.default_rng(4)
    snapshots, expected, written = Snapshots(str(tmp_path)), dict[int, int](), 0
    for shard.version in range(1, 4):
        expected[snapshots.begin(shard)] = digest(shard)
    for step in range(1, 1_000_000):
        for descriptor in select.select([*expected], [], [], 0)[0]:
            report = snapshots.end(descriptor)
            copy = Shard(0, 1)
            assert load_share(str(tmp_path / f"version-{report['version']}" / share_name(0, 1)), copy) == []
            assert (report["share"]["rows"], digest(copy)) == (20_000, expected.pop(descriptor))
            written += 1
        if not expected:
            break
        some = numpy.unique(generator.choice(ids, 500))
        shard.tables["user"].push(some, numpy.ones((len(some), DIMENSION)), step)
        shard.tables["user"].remove(some[::5])
        shard.tables["user"].pull(generator.integers(0, 10**6, 100))
    assert written == 3
    assert not shard.tables["user"]._frozen


def test_a_parameter_and_its_slots_may_be_larger_together_than_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = Definition({"w": (1000,)}, {}, Adam(0.1), Updates())
    shard, again = Shard(0, 1), Shard(0, 1)
    shard.define(definition, {"w": numpy.arange(1000, dtype=numpy.float32)})
    shard.slots["w"][1][:] = 7
    monkeypatch.setattr("trainmaster.ps.storage.journal.PAYLOAD_LIMIT", 4096)
    Share(shard).write(str(tmp_path))
    load_share(str(tmp_path / "version-0" / "variables-0-of-1.ckpt"), again)
    assert numpy.array_equal(again.dense["w"], shard.dense["w"])
    assert numpy.array_equal(again.slots["w"], shard.slots["w"])


def test_a_server_that_ends_leaves_shares_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster.ps.tables.table._BATCH", 48)
    shard, _ = shard_of(20_000)
    snapshots = Snapshots(str(tmp_path))
    for shard.version in (1, 2):
        snapshots.begin(shard)
    snapshots.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "snapshot"]
    assert {path.name for path in tmp_path.glob("*/*")} <= {f"{share_name(0, 1)}.part"}


def test_a_share_that_cannot_be_written_is_an_error_and_keeps_no_rows(tmp_path: Path) -> None:
    (tmp_path / "version-7").write_text("not a folder")
    shard, ids = shard_of(10)
    shard.version = 7
    snapshots = Snapshots(str(tmp_path))
    descriptor = snapshots.begin(shard)
    select.select([descriptor], [], [])
    report = snapshots.end(descriptor)
    assert report["version"] == 7
    assert "File exists" in report["error"]
    shard.tables["user"].push(ids, numpy.ones((10, DIMENSION)), 1)
    assert not shard.tables["user"]._frozen
