"""Hadoop's jars out of Maven, and the Java that runs them.

`pom.xml` names the jars, with fixed versions, and `jars.sha256` has the digest of each, as `sha256sum` writes it. They are downloaded once
for each user and pom into `$XDG_CACHE_HOME/trainmaster/hadoop-<digest of both>`. The directory gets its name when it is complete, so
that an interrupted download leaves nothing that looks like one. A process that needs the jars meanwhile waits for the one that loads them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainmaster.core.errors import BadInput, EngineFailed
from trainmaster.host.java import find_java
from trainmaster.host.places import cache_dir

POM = Path(__file__).with_name("pom.xml")
SUMS = Path(__file__).with_name("jars.sha256")
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
JAVAS = range(11, 22)  # major versions under which Hadoop 3.4 runs; 23 removed what its security needs
_LONGEST = 1800.0  # s that a download may take


def java() -> str:
    """Return the path of a Java under which Hadoop runs. Raises BadInput where there is none."""
    return find_java("Hadoop", JAVAS)


def folder() -> Path:
    """Return the directory of the jars, whether it exists or not."""
    return cache_dir() / f"hadoop-{hashlib.sha256(POM.read_bytes() + SUMS.read_bytes()).hexdigest()[:12]}"


def jars(say: Callable[[str], None] = lambda line: None) -> Path:
    """Return the directory of the jars; download them if need be, and tell `say` of that."""
    place = folder()
    if place.is_dir():
        return place
    with _locked(place):
        if not place.is_dir():
            maven = _maven()
            say(f"downloading Hadoop by Maven into {place}, about 100 MB, once")
            _download(maven, place)
    return place


def _maven() -> str:
    maven = shutil.which("mvn")
    if maven is None:
        raise BadInput(
            "there is no Maven (mvn) on the path, which downloads Hadoop",
            mend="get it: apt-get install maven",
            anchor="no-maven",
        )
    return maven


def _download(maven: str, place: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".loading-", dir=place.parent) as scratch:
        shutil.copy(POM, Path(scratch) / "pom.xml")
        command = [maven, "-q", "-B", "-ntp", COPY, f"-DoutputDirectory={scratch}/lib", "-DincludeScope=runtime"]
        process = subprocess.Popen(
            command, cwd=scratch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            output, _ = process.communicate(timeout=_LONGEST)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode != 0:
            errors = [line.removeprefix("[ERROR] ") for line in output.splitlines() if "ERROR" in line]
            first_error = errors[0] if errors else output.strip()
            raise EngineFailed(
                f"Maven could not download Hadoop: {first_error}",
                mend="see that this machine reaches a Maven repository, or names one in ~/.m2/settings.xml",
                anchor="no-download",
            )
        if odd := sorted(name for name, _ in digests(Path(scratch) / "lib") ^ pinned()):
            raise EngineFailed(
                f"Maven brought other jars than those of this Trainmaster: {', '.join(dict.fromkeys(odd))[:300]}",
                mend="see who has changed them: the Maven repository of this machine (~/.m2), or the one that it downloads from",
                anchor="no-download",
            )
        os.rename(f"{scratch}/lib", place)


def pinned() -> set[tuple[str, str]]:
    """Return the name and digest of each jar that is known."""
    lines = (line.split() for line in SUMS.read_text().splitlines())
    return {(name, digest) for digest, name in lines}


def digests(folder: Path) -> set[tuple[str, str]]:
    """Return the name and digest of each file in a directory."""
    files = set()
    for path in folder.iterdir():
        with path.open("rb") as file:
            files.add((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
    return files


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
