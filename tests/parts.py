"""Parts of a machine that some tests need and that it may lack: Java, Maven, Kerberos, Go, root, containerd, ...

A test whose part is missing has *not run*: the end of a run lists such tests by name, below what is missing and the one line that installs
it. It must not look like one that passed, so under `CI=true`, where every part has to be there, it fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import NoReturn

import pytest

from trainmaster.clusters import jars
from trainmaster.clusters.kubernetes import Settings, images, needs
from trainmaster.core.errors import TrainmasterError
from trainmaster.engines.local import limits

NOT_RUN = "not run: "
_MISSING = ("no-java", "no-maven", "no-download", "no-kerberos", "no-kubernetes-parts")  # errors' anchors


def not_run(missing: str, install: str) -> NoReturn:
    """End the present test as one that has not run; `install` is the line that installs what is missing."""
    reason = f"{missing}\n{install}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(NOT_RUN + reason)


def not_run_without(part: TrainmasterError) -> NoReturn:
    """End the present test as one that has not run, where the error is that a part of the machine is missing; raise any other error."""
    if part.anchor not in _MISSING:
        raise part
    not_run(part.message, part.mend.partition("; or ")[0])  # what a user may do without the part is nothing to a test


def need_parts(groups: Iterable[str]) -> None:
    """End the present test where a part is missing that the tests of one of its groups need."""
    for group in groups:
        if group in _CHECKS and (part := _missing(group)):
            not_run_without(part)


def need_control_groups() -> None:
    """End the present test as one that has not run, where no control group for memory can be made."""
    if limits._parent() is None:
        not_run("no control group can be made here", "sudo make test, and not in a container that may make none")


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
    jars.jars()


def _check_kubernetes() -> None:
    needs.check(Settings())
    images.images()


_CHECKS: Mapping[str, Callable[[], None]] = {
    "hadoop": _check_hadoop,
    "hadoop-server": _check_hadoop,
    "kubernetes": _check_kubernetes,
}
