"""Parts of a machine that some tests need and that it may lack: Java, Maven, Kerberos, Go, root, containerd, ...

A test whose part is missing has *not run*: the end of a run lists such tests by name, each list with the line that installs its part. It
must not look like one that passed, so under `CI=true`, where every part has to be there, it fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import NoReturn

import pytest

from trainmaster.clusters import jars
from trainmaster.clusters.kubernetes import Settings, needs
from trainmaster.core.errors import BadInput

NOT_RUN = "not run: "


def not_run(reason: str) -> NoReturn:
    """End the present test as one that has not run; `reason` says what is missing and how to install it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(NOT_RUN + reason)


def need_parts(groups: Iterable[str]) -> None:
    """End the present test where a part is missing that the tests of one of its groups need."""
    for group in groups:
        if group in _CHECKS and (reason := _missing(group)):
            not_run(reason)


def not_run_tests(reports: Iterable[pytest.TestReport]) -> Mapping[str, list[str]]:
    """The names of the tests that have not run, by reason, out of the reports of skipped tests."""
    tests: dict[str, list[str]] = {}
    for report in reports:
        words = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        _, mark, reason = words.partition(NOT_RUN)
        if mark:
            tests.setdefault(reason, []).append(report.nodeid)
    return tests


@cache
def _missing(group: str) -> str:
    try:
        _CHECKS[group]()
    except BadInput as missing:
        return " ".join(str(missing).split())
    return ""


def _check_hadoop() -> None:
    jars.java()
    jars.jars()


_CHECKS: Mapping[str, Callable[[], None]] = {
    "hadoop": _check_hadoop,
    "hadoop-server": _check_hadoop,
    "kubernetes": lambda: needs.check(Settings()),
}
