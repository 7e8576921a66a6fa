"""TensorFlowOnSpark's DataFeed over a real ring, whose owner is a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainmaster.runtime.feed.feeder import Feeder
from trainmaster.runtime.feed.layout import Column, column_of
from trainmaster.runtime.feed.reader import Reader
from trainmaster.spark.TFNode import DataFeed

PROGRAM = Path(__file__).parents[1] / "programs" / "feed_parties.py"


class Node:
    """A node with one feed; its results are kept by partition."""

    def __init__(self, path: Path, owner: subprocess.Popen[str]) -> None:
        self.path, self._owner = path, owner
        self.results: dict[tuple[int, int], list[Any]] = {}

    def source(self, name: str) -> Node:
        assert name == "input"
        self.reader = Reader(str(self.path))
        return self

    def read(self) -> Any:
        return self.reader.read()

    def terminate(self) -> None:
        self.reader.terminate()

    def give(self, partition: tuple[int, int], results: Sequence[Any]) -> None:
        self.results.setdefault(partition, []).extend(results)

    def feed(self, *batches: tuple[int, list[Column]], end: bool = True) -> None:
        """Feed batches, each with its partition."""
        with Feeder(str(self.path)) as feeder:
            for number, (partition, columns) in enumerate(batches):
                assert feeder.put((1, partition, number), columns)
            feeder.flush()
        if end:
            self.command("end")

    def command(self, word: str) -> None:
        assert self._owner.stdin is not None
        assert self._owner.stdout is not None
        print(word, file=self._owner.stdin, flush=True)
        assert word in self._owner.stdout.readline()


@pytest.fixture
def node(home: Any) -> Iterator[Node]:
    path = home.runtime / "data.feed"
    owner = subprocess.Popen(
        [sys.executable, PROGRAM, "own", path, "1000000"], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert owner.stdout is not None
        assert "ready" in owner.stdout.readline()
        node = Node(path, owner)
        yield node
        node.reader.close()
    finally:
        owner.kill()
        owner.communicate()
        path.unlink(missing_ok=True)


def values(first: int, count: int) -> list[Column]:
    return [column_of("value", np.arange(first, first + count))]


def test_batches_of_training_go_over_partitions_and_end_short(node: Node) -> None:
    feed = DataFeed(node)
    node.feed((0, values(0, 3)), (0, values(3, 2)), (1, values(5, 4)))
    read = []
    while not feed.should_stop():
        read.append(feed.next_batch(4))
    assert read == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert feed.next_batch(4) == []


def test_rows_are_tuples_and_their_memory_is_free(node: Node) -> None:
    feed = DataFeed(node)
    kept = []
    for number in range(6):  # each a fourth of the ring
        pixels = np.full((1000, 64), number, "f4")
        node.feed((number, [column_of("0", pixels), column_of("1", np.arange(1000))]), end=False)
        kept += feed.next_batch(1000)
    assert len(kept) == 6000
    assert all(pixels.tolist() == [row // 1000] * 64 for row, (pixels, _) in enumerate(kept))
    assert [label for _, label in kept] == [*range(1000)] * 6


def test_tensors_get_the_columns_in_the_order_of_their_names(node: Node) -> None:
    feed = DataFeed(node, input_mapping={"label": "y", "image": "x"})
    node.feed((0, [column_of("0", np.array([1, 2])), column_of("1", np.array([0.5, 1.5]))]))
    assert feed.next_batch(2) == {"x": [1, 2], "y": [0.5, 1.5]}
    assert feed.next_batch(2) == {"x": [], "y": []}
    assert feed.should_stop()


def test_batches_of_inference_keep_partitions_and_rows_get_one_result(node: Node) -> None:
    feed = DataFeed(node, train_mode=False)
    node.feed((0, values(0, 3)), (0, values(3, 2)), (1, values(5, 2)), (2, values(7, 1)))
    read = []
    while not feed.should_stop():
        batch = feed.next_batch(4)
        read.append(batch)
        feed.batch_results([value * 10 for value in batch[:1]])
        feed.batch_results([value * 10 for value in batch[1:]])
    assert [batch for batch in read if batch] == [[0, 1, 2, 3], [4], [5, 6], [7]]
    assert node.results == {(1, 0): [0, 10, 20, 30, 40], (1, 1): [50, 60], (1, 2): [70]}
    with pytest.raises(ValueError, match="there are 1 results, and 0 rows wait for one"):
        feed.batch_results([1])


def test_each_row_needs_a_result_before_the_next_batch(node: Node) -> None:
    feed = DataFeed(node, train_mode=False)
    node.feed((0, values(0, 5)))
    assert feed.next_batch(2) == [0, 1]
    feed.batch_results([0])
    with pytest.raises(ValueError, match="1 rows of the last batch have no result: give one result a row, before"):
        feed.next_batch(2)
    with pytest.raises(ValueError, match="there are 2 results, and 1 rows wait for one"):
        feed.batch_results([1, 2])


def test_a_feed_that_is_terminated_stops_its_feeders(node: Node) -> None:
    feed = DataFeed(node)
    node.feed((0, values(0, 3)), end=False)
    assert feed.next_batch(1) == [0]
    with Feeder(str(node.path)) as feeder:
        feed.terminate()
        assert feed.should_stop()
        assert feed.next_batch(1) == []
        while feeder.put((2, 0, 0), values(0, 1)):
            pass
