"""TensorFlowOnSpark's DataFeed over a real ring, whose owner is a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainmaster.runtime.feed.channel import FeedError
from trainmaster.runtime.feed.feeder import Feeder
from trainmaster.runtime.feed.layout import Column, Layout, column_of
from trainmaster.runtime.feed.reader import Reader
from trainmaster.spark.nodes.readers import Readers
from trainmaster.spark.TFNode import DataFeed

PROGRAM = Path(__file__).parents[1] / "programs" / "feed_parties.py"


class Node:
    """A node with one feed; its results are kept by partition."""

    def __init__(self, path: Path, owner: subprocess.Popen[str]) -> None:
        self.path, self._owner = path, owner
        self.results: dict[tuple[int, int], list[Any]] = {}
        self.feeders: dict[int, Feeder] = {}

    def source(self, name: str, results: str) -> Node:
        assert (name, results) == ("input", "output")
        self.reader = Reader(str(self.path))
        return self

    def read(self) -> Any:
        return self.reader.read()

    def terminate(self) -> None:
        self.reader.terminate()

    def give(self, partition: tuple[int, int], results: Sequence[Any]) -> None:
        self.results.setdefault(partition, []).extend(results)

    def feed(self, *batches: tuple[int, list[Column]], end: bool = True) -> None:
        """Feed batches of a training, each with its partition."""
        with Feeder(str(self.path)) as feeder:
            for number, (partition, columns) in enumerate(batches):
                assert feeder.put((1, partition, number), columns)
            feeder.flush()
        if end:
            self.command("end")

    def ask(self, *batches: tuple[int, list[Column]]) -> None:
        """Feed batches of an inference, each with its partition, and end the feed. Their feeders stay to the end, as those of Spark do."""
        partitions = [partition for partition, _ in batches]
        for number, (partition, columns) in enumerate(batches):
            feeder = self.feeders.setdefault(partition, Feeder(str(self.path)))
            wish = "more" if partition in partitions[number + 1 :] else "last"
            assert feeder.offer((1, partition, number), Layout(columns), answers=wish)["op"] == "write"
        for feeder in self.feeders.values():
            feeder.flush()
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
        for party in (node.reader, *node.feeders.values()):
            party.close()
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
    node.ask((0, values(0, 3)), (0, values(3, 2)), (1, values(5, 2)), (2, values(7, 1)))
    read = []
    while not feed.should_stop():
        batch = feed.next_batch(4)
        read.append(batch)
        feed.batch_results([value * 10 for value in batch[:1]])
        feed.batch_results(value * 10 for value in batch[1:])
    assert [batch for batch in read if batch] == [[0, 1, 2, 3], [4], [5, 6], [7]]
    assert node.results == {(1, 0): [0, 10, 20, 30, 40], (1, 1): [50, 60], (1, 2): [70]}
    with pytest.raises(ValueError, match="there are 1 results, and 0 rows wait for one"):
        feed.batch_results([1])


def test_results_may_be_an_array(node: Node) -> None:
    feed = DataFeed(node, train_mode=False)
    node.ask((0, values(0, 3)))
    feed.batch_results(np.square(feed.next_batch(2)))
    feed.batch_results(np.square(feed.next_batch(2)))
    assert node.results == {(1, 0): [0, 1, 4]}


def test_results_may_come_later_than_the_next_rows_of_their_partition(node: Node) -> None:
    feed = DataFeed(node, train_mode=False)
    node.ask((0, values(0, 3)), (1, values(10, 1)), (0, values(3, 2)))
    assert [feed.next_batch(2), feed.next_batch(2)] == [[0, 1], [2]]
    feed.batch_results(["a"])
    assert feed.next_batch(2) == [10]  # rows of two partitions, in turns
    feed.batch_results(["b", "c", "d"])
    assert feed.next_batch(2) == [3, 4]
    feed.batch_results(["e"])
    with pytest.raises(ValueError, match="there are 2 results, and 1 rows wait for one"):
        feed.batch_results(["f", "g"])
    with pytest.raises(ValueError, match="1 rows have no result, and their partition has no more rows"):
        feed.next_batch(2)
    feed.batch_results(["f"])
    assert feed.next_batch(2) == []
    assert node.results == {(1, 0): ["a", "b", "c", "e", "f"], (1, 1): ["d"]}


def test_a_feed_of_training_mode_answers_an_inference_too(node: Node) -> None:
    """A batch ends with its partition then, since the next partition may come only once this one has its results."""
    feed = DataFeed(node)
    node.ask((0, values(0, 3)), (1, values(3, 1)))
    while not feed.should_stop():
        feed.batch_results(feed.next_batch(2))
    assert node.results == {(1, 0): [0, 1, 2], (1, 1): [3]}


def test_a_feed_of_inference_mode_trains_too(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    feed = DataFeed(node, train_mode=False)
    node.feed((0, values(0, 3)), (1, values(3, 3)))
    read = []
    while not feed.should_stop():
        read.append(feed.next_batch(2))
        feed.batch_results([object()])
    assert read[:4] == [[0, 1], [2], [3, 4], [5]], "batches end with their partition"
    assert node.results == {}
    warnings = "results of the feed 'input' are dropped: the driver feeds it for training"
    assert [record.getMessage() for record in caplog.records] == [warnings]


def test_columns_without_a_tensor_are_left_out(node: Node) -> None:
    feed = DataFeed(node, input_mapping={"image": "x"})
    node.feed((0, [column_of("0", np.array([1, 2])), column_of("1", np.array([0.5, 1.5]))]))
    assert feed.next_batch(2) == {"x": [1, 2]}


def test_a_single_column_may_be_called_value(node: Node) -> None:
    feed = DataFeed(node, input_mapping={"value": "x"})
    node.feed((0, values(1, 2)))
    assert feed.next_batch(2) == {"x": [1, 2]}


def test_each_tensor_needs_a_column(node: Node) -> None:
    feed = DataFeed(node, input_mapping={"a": "x", "b": "y", "c": "z"})
    node.feed((0, [column_of("0", np.array([1])), column_of("1", np.array([0.5]))]))
    with pytest.raises(ValueError, match="a row has 2 values, and input_mapping names 3"):
        feed.next_batch(1)


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


def test_a_node_without_a_feed_refuses_the_first_read_alone() -> None:
    """A function makes its DataFeed before it looks at its role: a parameter server has no feed."""
    feed = DataFeed(Readers())
    assert not feed.should_stop()
    with pytest.raises(FeedError, match="this node has no feed 'input'"):
        feed.next_batch(1)
