"""Hadoop's jars out of Maven, and the Java that runs them.

Which jars is said by `pom.xml`, whose versions are fixed. They are downloaded once a user and pom into
`$XDG_CACHE_HOME/trainmaster/hadoop-<digest of the pom>`; the directory gets its name when it is whole, so that an interrupted download
leaves nothing that looks like one. Whoever wants them meanwhile waits for whoever loads them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainmaster.core.errors import BadInput, EngineFailed

POM = Path(__file__).with_name("pom.xml")
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
JAVAS = range(11, 22)  # major versions under which Hadoop 3.4 runs; 23 took away what its security needs
_LONGEST = 1800.0  # s that a download may take
_GET_JAVA = "get a Java of version 11 to 21: apt-get install openjdk-17-jdk-headless, or set JAVA_HOME"


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/trainmaster`, else `~/.cache/trainmaster`; not created."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home).absolute() if home else Path.home() / ".cache") / "trainmaster"


def java() -> str:
    """The path of a Java that Hadoop runs under: JAVA_HOME's, else the one on PATH. BadInput where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        raise BadInput(
            f"there is no Java {f'in JAVA_HOME ({home})' if home else 'on the path'}, which Hadoop's daemons need",
            mend=_GET_JAVA,
            anchor="no-java",
        )
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version[1]) not in JAVAS:
        raise BadInput(
            f"{found} is {said.splitlines()[0] if said else 'no Java'}, under which Hadoop does not run",
            mend=_GET_JAVA,
            anchor="no-java",
        )
    return found


def jars(say: Callable[[str], None] = lambda line: None) -> Path:
    """The directory of the jars, downloaded if need be, which is told to `say`."""
    folder = cache_dir() / f"hadoop-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    with _alone(folder):
        if not folder.is_dir():
            maven = _maven()
            say(f"downloading Hadoop by Maven into {folder}, about 100 MB, once")
            _download(maven, folder)
    return folder


def _maven() -> str:
    found = shutil.which("mvn")
    if found is None:
        raise BadInput(
            "there is no Maven (mvn) on the path, which downloads Hadoop",
            mend="get it: apt-get install maven",
            anchor="no-maven",
        )
    return found


def _download(maven: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".loading-", dir=folder.parent) as scratch:
        shutil.copy(POM, Path(scratch) / "pom.xml")
        command = [maven, "-q", "-B", "-ntp", COPY, f"-DoutputDirectory={scratch}/lib", "-DincludeScope=runtime"]
        process = subprocess.Popen(
            command, cwd=scratch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            said, _ = process.communicate(timeout=_LONGEST)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode != 0:
            wrong = [line.removeprefix("[ERROR] ") for line in said.splitlines() if "ERROR" in line] or [said.strip()]
            raise EngineFailed(
                f"Maven could not download Hadoop: {wrong[0]}",
                mend="see that this machine reaches a Maven repository, or names one in ~/.m2/settings.xml",
                anchor="no-download",
            )
        os.rename(f"{scratch}/lib", folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
