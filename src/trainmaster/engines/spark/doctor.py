"""Check the Spark of this machine, for `tm doctor`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec

from trainmaster.engines.findings import GOOD, Finding, Outcome, finding
from trainmaster.engines.spark.home import find_home


def findings() -> Iterator[Finding]:
    """Yield one finding: Spark's version, its Java, and the Python of executors."""
    yield finding("spark", _spark)


def _spark() -> Outcome:
    if not (os.environ.get("SPARK_HOME") or shutil.which("spark-submit") or find_spec("pyspark")):
        return GOOD, "no SPARK_HOME, spark-submit or pyspark is here; one is needed for --engine spark alone", ""
    home = find_home()
    python = os.environ.get("PYSPARK_PYTHON")
    executors = f"PYSPARK_PYTHON={python}" if python else "PYSPARK_PYTHON is not set: python3 of each node"
    return GOOD, f"{home.version} in {home.folder}, Java {home.java()}, {executors}", ""
