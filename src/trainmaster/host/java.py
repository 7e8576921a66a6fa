"""The Java of this machine that runs Hadoop and Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

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
