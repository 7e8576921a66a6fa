"""The Spark of this machine: the directory of its jars and scripts, its version, and the Java and Python that go with it.

It is `SPARK_HOME`, else that of the `spark-submit` on the path, else the directory of the package `pyspark` in the environment of this
process. All have the same layout; pyspark brings the jars of the whole standalone cluster. pyspark is looked up, and never imported.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.host.java import find_java

JAVAS = {3: range(11, 18), 4: range(17, 22)}  # Spark's major version -> Java's, as Spark's documents have them
_CORE = re.compile(r"spark-core_[\d.]+-(\d+)\.(.+)\.jar")


@attrs.frozen
class Home:
    """One installed Spark."""

    folder: Path
    version: str  # such as 3.5.9

    @property
    def spark_class(self) -> str:
        """The script that starts a class of Spark's."""
        return str(self.folder / "bin" / "spark-class")

    @property
    def spark_submit(self) -> str:
        return str(self.folder / "bin" / "spark-submit")

    @property
    def python(self) -> str:
        """The Python for drivers and executors: of the environment that the package pyspark is in, else the present one."""
        environment = self.folder.parents[3] if len(self.folder.parents) > 3 else self.folder
        beside_package = environment / "bin" / "python"  # of <environment>/lib/python3.x/site-packages/pyspark
        return str(beside_package) if self.folder.name == "pyspark" and beside_package.exists() else sys.executable

    def java(self) -> str:
        """Return the path of a Java under which this Spark runs. Raises BadInput where there is none."""
        return find_java(f"Spark {self.version}", JAVAS[int(self.version.partition(".")[0])])


def find_home(folder: Path | None = None) -> Home:
    """Return the Spark in `folder`, else that of SPARK_HOME, of the path, of the package pyspark. Raises BadInput where there is none."""
    if folder is not None:
        return _home(folder, str(folder))
    if place := os.environ.get("SPARK_HOME"):
        return _home(Path(place), f"SPARK_HOME={place}")
    if script := shutil.which("spark-submit"):
        directory = Path(script).resolve().parents[1]
        if (directory / "jars").is_dir():  # a package has its script elsewhere, in its environment
            return _home(directory, script)
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise BadInput(
            "there is no Spark here: SPARK_HOME is not set, no spark-submit is on the path, and the package pyspark is not installed",
            place=sys.prefix,
            mend="in a clone of Trainmaster: pip install '.[spark]'; or set SPARK_HOME",
            anchor="no-spark",
        )
    return _home(Path(package.origin).parent, f"the package pyspark in {sys.prefix}")


def _home(folder: Path, place: str) -> Home:
    names = (_CORE.fullmatch(path.name) for path in folder.glob("jars/spark-core_*.jar"))
    core = next((name for name in names if name), None)
    if core is None or not (folder / "bin" / "spark-class").exists():
        raise BadInput(
            f"{folder} is not a Spark installation: it has no bin/spark-class, or no jars/spark-core_*.jar", place=place,
            mend="name the directory of a whole Spark in SPARK_HOME", anchor="no-spark",
        )  # fmt: skip
    if int(core[1]) not in JAVAS:
        raise BadInput(
            f"Spark {core[1]}.{core[2]} is in {folder}, and 3.5 and 4 are the versions that can be used", place=place,
            mend="name another one in SPARK_HOME", anchor="no-spark",
        )  # fmt: skip
    return Home(folder.absolute(), f"{core[1]}.{core[2]}")
