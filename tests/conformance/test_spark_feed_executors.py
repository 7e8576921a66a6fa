"""What executors lack is told before anything is fed: on a real Spark, whose executors have a Python of their own."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from conformance.test_spark_feed import fed, values
from spark import VERSIONS

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.full]
LISTENS = """
        import logging
        told = []
        logging.getLogger("trainmaster.spark.feed").handle = lambda record: told.append([record.levelname, record.getMessage()])
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_without_pyarrow_rows_come_one_by_one_and_a_line_names_the_executor(version: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    how = (
        LISTENS
        + """
        feed.put(session.range(0, 1000, 1, 4).selectExpr("id as value", "array(cast(id as float)) as list"))
        feed.end()
        answer["told"] = told
    """
    )
    bare = str(tmp_path / "bare" / "bin" / "python")
    answer = fed(tmp_path, version, how, executors=bare, feed={"input": {"memory": "4MiB", "agreed": False}})
    assert answer["state"] == "succeeded", answer
    assert sorted(chain.from_iterable(values(answer))) == list(range(1000))
    [[level, line]] = answer["told"]
    assert level == "WARNING", "nobody listens to less by default"
    assert "row by row: as batches of Arrow it would be much faster, but executor " in line
    assert f"has no pyarrow: install it for its Python, {bare}" in line


@pytest.mark.parametrize("version", VERSIONS)
def test_another_python_of_executors_is_an_error_that_names_both(version: str, tmp_path: Path) -> None:
    # What a driver tells executors of its Python is what they compare theirs with.
    how = """
        while run.status()["state"] == "pending":  # the readers have their containers before
            time.sleep(0.1)
        context.pythonVer = "3.9"
        began = time.monotonic()
        try:
            feed.put(context.parallelize(range(100), 2))
        finally:
            answer["seconds"] = time.monotonic() - began
            context.pythonVer = "%d.%d" % sys.version_info[:2]
            run.kill()
    """
    answer = fed(tmp_path, version, how)
    error = answer["error"]
    assert "executor " in error, answer
    assert f"runs Python {sys.version_info[0]}.{sys.version_info[1]}, and this driver Python 3.9" in error
    assert "set PYSPARK_PYTHON to a Python 3.9 that executors have" in error
    assert answer["seconds"] < 300
