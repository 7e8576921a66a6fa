"""Parts of a machine that some tests need and that it may lack: Java, Maven, Kerberos, Spark, Go, root, containerd, Chromium, ...

A test whose part is missing has *not run*: the end of a run lists such tests by name, below what is missing and the one line that installs
it. It must not look like one that passed, so under `CI=true`, where every part has to be there, it fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import browser
import pytest
import spark

from trainmaster.clusters.hadoop import jars
from trainmaster.clusters.kubernetes import Settings, images, needs
from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.host import limits

NOT_RUN = "not run: "
AS_ROOT = "sudo make test, and not in a container that may not do this"
_MISSING = (
    "no-java",
    "no-maven",
    "no-download",
    "no-kerberos",
    "no-spark",
    "no-kubernetes-parts",
    "no-browser",
)  # errors' anchors


def not_run(missing: str, install: str) -> NoReturn:
    """End the present test as one that has not run; `install` is the line that installs what is missing."""
    reason = f"{missing}\n{install}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(NOT_RUN + reason)


def outcome(raised: pytest.ExceptionInfo[BaseException]) -> pytest.ExceptionInfo[BaseException]:
    """Return what a test has raised, or that it has not run where the error says that a part of the machine is missing."""
    error = raised.value
    if not isinstance(error, TrainmasterError) or error.anchor not in _MISSING:
        return raised
    try:
        not_run(
            error.message, error.mend.partition("; or ")[0]
        )  # what a user may do without the part is nothing to a test
    except (pytest.skip.Exception, pytest.fail.Exception):
        return pytest.ExceptionInfo.from_current()


def need_parts(groups: Iterable[str]) -> None:
    """Raise the error of a part that the tests of one of these groups need and that is missing."""
    for group in groups:
        if group in _CHECKS and (error := _missing(group)):
            raise error


@contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """Have a file system of its own in memory at `place`, with these options of `mount`."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        not_run("no file system can be mounted here", AS_ROOT)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def freezing(place: Path, image: Path) -> Iterator[Callable[[bool], None]]:
    """Have a file system at `place`, in the file `image`, that hangs while it is frozen, as one whose server is away: `freeze(True)`."""
    image.write_bytes(b"")
    os.truncate(image, 32 << 20)

    def succeeds(*command: str) -> bool:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    if not (succeeds("mkfs.ext4", "-q", str(image)) and succeeds("mount", "-o", "loop", str(image), str(place))):
        not_run("no file system can be mounted from a file here", AS_ROOT)

    def freeze(on: bool) -> None:
        subprocess.run(["fsfreeze", "-f" if on else "-u", str(place)], check=True, capture_output=True)

    try:
        yield freeze
    finally:
        succeeds("fsfreeze", "-u", str(place))
        subprocess.run(["umount", "-l", str(place)], check=True)


def need_root() -> None:
    """End the present test as one that has not run, where it may not become another user."""
    if os.geteuid() != 0:
        not_run("only root may become another user", AS_ROOT)


def need_control_groups() -> None:
    """End the present test as one that has not run, where no control group for memory can be made."""
    if limits._parent() is None:
        not_run("no control group can be made here", AS_ROOT)


def need_network_namespaces() -> None:
    """End the present test as one that has not run, where no network namespace with a bridge can be made."""
    if shutil.which("ip") is None:
        not_run("there is no ip on the path", "apt-get install iproute2")
    command = ["unshare", "--net", "ip", "link", "add", "br0", "type", "bridge"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        not_run("no network namespace with a bridge can be made here", AS_ROOT)


def need_frameworks(*modules: str) -> None:
    """End the present test as one that has not run, where one of these modules is not installed."""
    if missing := [module for module in modules if find_spec(module) is None]:
        not_run(f"not installed: {', '.join(missing)}", "make frameworks")


def not_run_tests(reports: Iterable[pytest.TestReport]) -> Mapping[str, list[str]]:
    """Return the names of the tests that have not run, by reason, out of the reports of skipped tests."""
    tests: dict[str, list[str]] = {}
    for report in reports:
        words = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        _, mark, reason = words.partition(NOT_RUN)
        if mark:
            tests.setdefault(reason, []).append(report.nodeid)
    return tests


@cache
def _missing(group: str) -> TrainmasterError | None:
    try:
        _CHECKS[group]()
    except TrainmasterError as part:
        return part
    return None


def _check_hadoop() -> None:
    jars.java()
    if shutil.which("javac") is None:  # Maven's package brings a Java without it
        raise BadInput(
            "there is no javac on the path", mend="apt-get install openjdk-17-jdk-headless", anchor="no-java"
        )
    jars.jars()


def _check_kubernetes() -> None:
    needs.check(Settings())
    images.images()


def _check_spark() -> None:
    for version in spark.VERSIONS:
        spark.home_of(version).java()


_CHECKS: Mapping[str, Callable[[], None]] = {
    "hadoop": _check_hadoop,
    "hadoop-server": _check_hadoop,
    "kubernetes": _check_kubernetes,
    "spark": _check_spark,
    "browser": browser.check,
}
