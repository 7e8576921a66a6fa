"""The peers on Spark, where `make peers` and `make frameworks` were run: their packages alone, beside our TensorFlow and PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import figures

# Packages that it needs beside TensorFlow, and that TorchDistributor needs beside PyTorch.
_PACKAGES = ("tensorflowonspark", "pkg_resources", "setuptools", "pandas", "dateutil", "pytz", "six.py", "tzdata")
MISSING = "TensorFlowOnSpark is not there: make peers frameworks"


def environment(place: Path) -> dict[str, str]:
    """Return the variables by which drivers and executors have TensorFlowOnSpark; {} where it is not there. `place`: a directory for links.

    They get only these packages of the peers' environment: the versions of the others are not TensorFlow's.
    """
    packages = [path for name in _PACKAGES for path in figures.PEERS.parent.glob(f"lib/python3*/site-packages/{name}")]
    if len(packages) < len(_PACKAGES) or not (figures.BIN.parent / ".tensorflow").exists():
        return {}
    place.mkdir(exist_ok=True)
    for path in packages:
        (place / path.name).symlink_to(path)
    return {"PYTHONPATH": str(place), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
