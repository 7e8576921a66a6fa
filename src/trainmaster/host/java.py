"""The Java of this machine that runs Hadoop and Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator

from trainmaster.core.errors import BadInput


def find_java(program: str, versions: range) -> str:
    """Return the path of a Java: JAVA_HOME's, else the one on PATH.

    Raises BadInput where there is none, or where `program` does not run under its major version.
    """
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    mend = f"get a Java of version {versions[0]} to {versions[-1]}: apt-get install openjdk-17-jdk-headless, or set JAVA_HOME"
    if path is None:
        raise BadInput(
            f"there is no Java {f'in JAVA_HOME ({home})' if home else 'on the path'}, which {program} needs",
            mend=mend,
            anchor="no-java",
        )
    printed = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', printed)
    if version is None or int(version[1]) not in versions:
        raise BadInput(
            f"{path} is {printed.splitlines()[0] if printed else 'no Java'}, under which {program} does not run",
            mend=mend,
            anchor="no-java",
        )
    return path


def commands_above() -> Iterator[list[str]]:
    """Yield the arguments of this process, then those of each one above it: of a Spark task, a daemon of Python, then the executor's Java.

    Spark sends this function to the executors as it is, since nothing of ours is installed there.
    """
    process = os.getpid()
    while process > 1:
        with open(f"/proc/{process}/cmdline", "rb") as command:
            yield command.read().decode(errors="surrogateescape").split("\0")
        with open(f"/proc/{process}/stat", "rb") as stat:
            process = int(stat.read().rpartition(b")")[2].split()[1])
