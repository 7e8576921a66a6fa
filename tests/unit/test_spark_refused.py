"""Spark's error of a feeder that refused a row, as one line of ours."""

from __future__ import annotations

import pytest

from trainmaster.core.errors import BadInput, EngineFailed, TrainmasterError
from trainmaster.spark.feed import _refused

# As py4j has it, but for the middle of its stacks.
STACKS = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.runJob.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 2.0 failed 4 times, most recent failure: \
Lost task 3.3 in stage 2.0 (TID 9) (127.0.0.2 executor 0): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1247, in main
    process()
{error}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
{error}
"""


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            "trainmaster.runtime.feed.structures.WrongRow: row 1, column 'x': expected a number, found text", BadInput,
            "partition 3, row 1, column 'x': expected a number, found text",
        ),
        (
            "trainmaster.runtime.feed.channel.FeedError: a row has 9 bytes, and a batch may have 3", EngineFailed,
            "partition 3, a row has 9 bytes, and a batch may have 3",
        ),
    ],
)  # fmt: skip
def test_a_refused_row_is_one_line(error: str, kind: type[TrainmasterError], words: str) -> None:
    ours = _refused(RuntimeError(STACKS.format(error=error)))
    assert isinstance(ours, kind)
    assert ours.message == words


def test_any_other_error_is_left_alone() -> None:
    assert _refused(RuntimeError(STACKS.format(error="ValueError: the data's own"))) is None
