"""ElasticDL's data shard services without a job: all records, in one process, and what they say of what is wrong."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.elasticdl import synchronization
from trainmaster.elasticdl.controllers import Controller
from trainmaster.elasticdl.data_shards import (
    EVALUATION,
    TRAINING,
    DataShardService,
    RecordIndexService,
    build_data_shard_service,
)  # fmt: skip
from trainmaster.elasticdl.recordio_reader import RecordIOReader
from trainmaster.runtime.formats import recordio
from trainmaster.zoo.errors import BadModel


def records_of(service: RecordIndexService) -> Iterator[int]:
    try:
        while True:
            yield service.fetch_record_index()
    except StopIteration:
        return


@given(
    size=st.integers(1, 300), batch=st.integers(1, 40), epochs=st.integers(1, 3), minibatches=st.integers(0, 5), shuffle=st.booleans()
)  # fmt: skip
def test_each_record_is_in_one_shard_of_each_epoch(
    size: int, batch: int, epochs: int, minibatches: int, shuffle: bool
) -> None:
    service = build_data_shard_service(batch, epochs, size, shuffle, num_minibatches_per_shard=minibatches)
    records: list[list[int]] = [[] for _ in range(epochs)]
    finished = 0
    while shard := service.fetch_shard():
        order = shard.indices or [*range(shard.start, shard.end)]
        assert len(order) == shard.end - shard.start
        records[service.get_current_epoch()] += order
        while order:
            count, order = len(order[:batch]), order[batch:]
            finished += service.report_batch_done(random.choice([count, None]))
    assert [sorted(epoch) for epoch in records] == [[*range(size)]] * epochs
    assert finished == epochs * -(-size // (batch * (minibatches or 8)))


@given(size=st.integers(1, 300), batch=st.integers(1, 40), epochs=st.integers(1, 3), shuffle=st.booleans())
def test_records_come_in_whole_batches_each_once_an_epoch(size: int, batch: int, epochs: int, shuffle: bool) -> None:
    service = RecordIndexService(batch_size=batch, num_epochs=epochs, dataset_size=size, shuffle=shuffle)
    records = [*records_of(service)]
    assert len(records) == -(-size * epochs // batch) * batch
    for epoch in range(epochs):
        assert sorted(records[epoch * size : (epoch + 1) * size]) == [*range(size)]
    assert {*records[size * epochs :]} <= {*records[-batch:]}, "the last batch is filled up with records of its own"
    finished = sum(service.report_batch_done() for _ in range(len(records) // batch))
    assert finished >= 1
    assert not service.report_batch_done(), "there is no more batch"


def test_shuffled_records_of_a_shard_come_from_the_whole_epoch() -> None:
    """A folder of images is sorted by class: a shard of neighbours would have one class alone."""
    service = DataShardService(batch_size=10, num_epochs=2, dataset_size=1000, shuffle=True, dataset_name="digits")
    first = service.fetch_shard()
    assert first is not None
    assert {index // 100 for index in first.indices} >= {0, 9} or len({index // 100 for index in first.indices}) > 5
    second = RecordIndexService(batch_size=10, num_epochs=1, dataset_size=1000, shuffle=True)
    assert [second.fetch_record_index() for _ in range(80)] == first.indices, "all tasks have the same order"


def test_a_batch_beyond_what_was_fetched_finishes_no_further_shard() -> None:
    service = build_data_shard_service(batch_size=64, dataset_size=1000, num_minibatches_per_shard=1)
    assert service.fetch_shard()
    assert service.report_batch_done(100)
    assert service.fetch_shard()
    assert not service.report_batch_done(63)
    assert service.report_batch_done(1)


def test_batches_over_the_border_of_two_shards_finish_both() -> None:
    service = build_data_shard_service(batch_size=10, dataset_size=30, num_minibatches_per_shard=1)
    assert service.fetch_shard()
    assert service.fetch_shard()
    assert [service.report_batch_done(15), service.report_batch_done(4), service.report_batch_done(1)] == [
        True,
        False,
        True,
    ]


def test_a_batch_that_failed_ends_the_program() -> None:
    service = build_data_shard_service(batch_size=64, dataset_size=1000)
    with pytest.raises(RuntimeError, match="a batch failed: no memory"):
        service.report_batch_done(err_msg="no memory")


def test_a_checkpoint_leaves_out_what_was_done() -> None:
    service = DataShardService(batch_size=10, num_epochs=2, dataset_size=60, num_minibatches_per_shard=2)
    for _ in range(4):
        assert service.fetch_shard()
        service.report_batch_done(20)
    kept = service.get_shard_checkpoint()
    later = DataShardService(batch_size=10, num_epochs=2, dataset_size=60, num_minibatches_per_shard=2)
    assert later.restore_shard_from_checkpoint(kept)
    shard = later.fetch_shard()
    assert shard is not None
    assert (shard.start, shard.end, later.get_current_epoch()) == (20, 40, 1)
    other = DataShardService(batch_size=10, num_epochs=2, dataset_size=70, num_minibatches_per_shard=2)
    assert not other.restore_shard_from_checkpoint(kept), "other records"
    assert not other.restore_shard_from_checkpoint("{}")
    assert not other.restore_shard_from_checkpoint("nothing")


def test_the_job_and_the_program_agree_or_the_program_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_INPUT_VALIDATION", "records://50/10?epochs=1")
    service = build_data_shard_service(batch_size=5, task_type=EVALUATION)
    assert service.get_minibatch_count_per_epoch() == 10
    with pytest.raises(
        BadModel, match=r"dataset_size 51, and the job 50\n.*inputs.validation\n.*records://51/40"
    ) as refused:
        build_data_shard_service(batch_size=5, dataset_size=51, task_type=EVALUATION)
    assert refused.value.status == 2
    monkeypatch.setenv("TRAINMASTER_INPUT_MINE", "records://70/10?epochs=3")
    assert DataShardService(batch_size=10, num_epochs=3, dataset_name="mine").get_minibatch_count_per_epoch() == 7
    monkeypatch.setenv("TRAINMASTER_JOB", "digits-1")
    with pytest.raises(BadModel, match="the input training of the job is missing"):
        build_data_shard_service(batch_size=5, dataset_size=50)
    monkeypatch.setenv("TRAINMASTER_INPUT_TRAINING", "training")
    with pytest.raises(BadModel, match="the input training of the job is files"):
        build_data_shard_service(batch_size=5, dataset_size=50)


@pytest.mark.parametrize(("size", "epochs", "batch"), [(None, 1, 8), (0, 1, 8), (-1, 1, 8), (10, 0, 8), (10, 1, 0)])
def test_what_is_missing_alone_is_reported(size: int | None, epochs: int, batch: int) -> None:
    with pytest.raises(BadModel, match=r"at least 1|dataset_size"):
        build_data_shard_service(batch_size=batch, dataset_size=size, num_epochs=epochs, task_type=TRAINING)


def test_a_pickled_service_fetches_from_the_process_that_made_it() -> None:
    """As loaders do whose processes are no forks. Its queues are pickled only on the way to a process, so this takes a copy by hand."""
    service = RecordIndexService(batch_size=4, dataset_size=8)
    reader = object.__new__(RecordIndexService)
    reader.__dict__.update(service.__getstate__())
    reader._process = 0  # this is another process now
    assert [reader.fetch_record_index() for _ in range(8)] == [*range(8)]
    with pytest.raises(StopIteration):
        reader.fetch_record_index()
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(service)


def test_alone_nobody_is_waited_for() -> None:
    assert synchronization.worker_sync("data")
    with synchronization.lock("index"):
        assert synchronization.worker_sync("data", timeout=1)
    synchronization.delete_worker_sync("data")
    synchronization.delete_all_worker_sync()


class Late(Controller):
    """A controller that comes when the others have finished."""

    def _step_without_batch(self) -> bool:
        self._begun()
        return True

    def _make_training(self) -> None:
        raise SystemExit(0)


def test_who_comes_too_late_ends_well_at_the_end_of_its_scope() -> None:
    """Not while it waits for records, which may be in a thread of TensorFlow's: there the end of the program would be an error."""
    controller = Late(RecordIndexService(batch_size=8, dataset_size=8))
    controller.set_broadcast_model(object())
    controller.set_broadcast_optimizer(object())
    scope = controller.scope()
    scope.__enter__()
    assert not controller.data_shard_service.idle()
    with pytest.raises(SystemExit, match="0"):
        scope.__exit__(None, None, None)


def test_records_of_files_by_their_numbers(tmp_path: Path) -> None:
    written = []
    for file, count in (("a", 100), ("b", 0), ("c", 57)):
        with recordio.Writer(tmp_path / file, chunk=200) as writer:
            for number in range(count):
                written.append(b"%s %d" % (file.encode(), number))
                writer.write(written[-1])
    reader = RecordIOReader([str(tmp_path / file) for file in ("a", "b", "c")])
    assert reader.count == 157
    for start, end in ((0, 157), (0, 1), (99, 101), (156, 157), (40, 60), (120, 500), (157, 200)):
        assert [*reader.read_records(start, end)] == written[start:end]
