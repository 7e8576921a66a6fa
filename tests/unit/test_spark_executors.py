"""Spark's words for executors with another Python become ours."""

from __future__ import annotations

import pytest

from trainmaster.spark.frames.executors import _translated

LOST = "Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.5 executor 7): org.apache.spark.api.python.PythonException: "


@pytest.mark.parametrize(
    "words",
    [  # of Spark 3.5 and of 4
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version (3, 11) than that in driver 3.12, PySpark cannot",
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.11 than that in driver: 3.12, PySpark cannot",
    ],
)
def test_another_python_is_reported_with_executor_and_mend(words: str) -> None:
    error = _translated(LOST + words)
    assert error is not None
    assert error.message == (
        "executor 7 on 10.0.0.5 runs Python 3.11, and this driver Python 3.12: Spark needs the same minor version on both"
    )
    assert error.mend.startswith("set PYSPARK_PYTHON to a Python 3.12 that executors have")
    assert _translated(LOST + "ZeroDivisionError") is None
