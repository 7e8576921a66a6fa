"""What every test has: directories of its own, seeds that are printed, and a look at what it left behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import hypothesis
import leftovers
import pytest
import watchdog
from _pytest.nodeid import coerce_node_id
from hadoop import daemons_live, hadoop, on_hadoop, secure_hadoop
from hadoop import over as hadoop_over
from kubernetes import kubernetes, kubernetes_lives, on_kubernetes
from kubernetes import over as kubernetes_over
from parts import need_parts, not_run_tests, outcome
from postgres import postgres, postgres_server
from rotation import Choice, changed_files, choice, is_late, summary
from s3 import s3, s3_for_pods, s3_server
from spark import on_spark
from waiting import until

__all__ = [  # fixtures for all tests
    "daemons_live", "hadoop", "kubernetes", "kubernetes_lives", "on_hadoop", "on_kubernetes", "on_spark", "postgres",
    "postgres_server", "s3", "s3_for_pods", "s3_server", "secure_hadoop",
]  # fmt: skip

KUBERNETES = "kubernetes"
# For tests that take turns (rotation.py): why one runs, with the unit that it is of; and those of a run that its change cannot touch.
_CHOICE = pytest.StashKey[tuple[Choice, str]]()
_UNTOUCHED = pytest.StashKey[dict[str, str]]()
_LATE = "left out for want of time"
BROWSER, HADOOP = "browser", "hadoop"
# s after which a test fails, so that the others' results are not lost with it; the making of clusters is not counted.
LONGEST_SHORT, LONGEST_FULL = 900, 3000
SPREAD = (HADOOP, "netns")  # groups whose full tests are for all workers of a run

hypothesis.settings.register_profile("short", deadline=None, max_examples=60, print_blob=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=1500, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trainmaster")
    group.addoption("--seed", type=int, default=None, help="run every seeded test with this one seed alone")
    group.addoption("--seeds", type=int, default=None, help="how many seeds a seeded test tries (default: its own)")
    group.addoption("--base-seed", type=int, default=None, help="the first seed (default: a random one, printed)")
    group.addoption(
        "--turn", type=int, default=None, help="of the full tests those that this landing is for (see rotation.py)"
    )
    group.addoption("--since", default="", help="the commit that the last landing ended with, for --turn")
    group.addoption("--began", type=float, default=None, help="when the landing's run began, s since 1970, for --turn")
    group.addoption("--long", action="store_true", help="more examples a property")


@pytest.hookimpl(trylast=True)  # when there is a temporary directory
def pytest_configure(config: pytest.Config) -> None:
    if config.option.base_seed is None:
        config.option.base_seed = random.SystemRandom().randrange(1 << 31)
    if (
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    ):  # a shell began the run in the background, and commands would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.settings.load_profile("long" if config.option.long else "short")
    watchdog.begin(config._tmp_path_factory.getbasetemp())


def pytest_report_header(config: pytest.Config) -> str:
    if config.option.seed is not None:
        return f"seed: {config.option.seed} alone"
    return f"seeds: from {config.option.base_seed} (again with --base-seed {config.option.base_seed})"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of a group are for one worker of a run: it has the Kubernetes cluster, which is much for two cores, the browser, or
    what is made once for several tests, as simulations to play and programs that load a framework.

    In a short run, one worker has the Hadoop clusters too, each of which takes 35 s of a core to start. The full tests on Hadoop, and
    those in network namespaces, are so many that their run is over sooner where they are spread over its workers.
    pytest-xdist 3.8 writes a test's group behind its id, where pytest 9.2 does not look any more: its groups have no effect by themselves.
    """
    _limit_times(items)
    if config.option.turn is not None:
        _take_turns(config, items)
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        for group in _groups(item):
            if group == BROWSER and _is_short(config):
                group = KUBERNETES  # whose pods come with links, at each of which Chromium ends its requests
            if _is_together(group, config) and not item.nodeid.endswith(f"@{group}"):
                item._id = coerce_node_id(f"{item.nodeid}@{group}")  # type: ignore[attr-defined]


def _limit_times(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.get_closest_marker("soak"):
            limit = LONGEST_FULL if item.get_closest_marker("full") else LONGEST_SHORT
            item.add_marker(pytest.mark.timeout(limit, func_only=True))


def _is_together(group: str, config: pytest.Config) -> bool:
    return group not in SPREAD or _is_short(config)


def _is_short(config: pytest.Config) -> bool:
    return str(config.option.markexpr).startswith("not full")


def _take_turns(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that do not run at this landing, and sort the others by why they do."""
    files = changed_files(config.option.since)
    for item in items:
        unit = _unit(item)
        item.stash[_CHOICE] = choice(item.nodeid, unit, config.option.turn, files), unit
    absent = {item.nodeid: item for item in items if item.stash[_CHOICE][0] is Choice.NONE}
    config.hook.pytest_deselected(items=[*absent.values()])
    items[:] = sorted((item for item in items if item.nodeid not in absent), key=lambda item: item.stash[_CHOICE][0])
    config.stash[_UNTOUCHED] = {test: item.stash[_CHOICE][1] for test, item in absent.items()}


def _unit(item: pytest.Item) -> str:
    """Return what takes its turn as a whole: a file whose tests share a fixture, as a cluster of their own; else the test."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
    shared = any(fixture[-1].scope == "module" for fixture in fixtures)
    return item.nodeid.partition("::")[0] if shared else item.nodeid


def _skip_if_late(item: pytest.Item) -> None:
    """Leave out a test whose turn it is not, where the landing has no time for it any more."""
    if item.config.option.began is None or _CHOICE not in item.stash:
        return
    reason, unit = item.stash[_CHOICE]
    if is_late(reason, (time.time() - item.config.option.began) / 60):
        item.user_properties.append((_LATE, unit))
        pytest.skip(_LATE)  # noqa: TID251


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker collects, and the run that it belongs to prints
        session.config.workeroutput["untouched"] = session.config.stash.get(_UNTOUCHED, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_UNTOUCHED] = getattr(node, "workeroutput", {}).get("untouched", {})


def _groups(item: pytest.Item) -> list[str]:
    return [mark.args[0] for mark in item.iter_markers("xdist_group")]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _skip_if_late(item)
    need_parts(_groups(item))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The group's tests come one behind the other, where there are groups."""
    if not getattr(item.config.option, "loadgroup", False) or nextitem is None:
        return
    for group, over in ((KUBERNETES, kubernetes_over), (HADOOP, hadoop_over)):
        if _is_together(group, item.config) and group in _groups(item) and group not in _groups(nextitem):
            over()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    properties = [
        words
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for words in report.user_properties
    ]
    for line in sorted(str(value) for name, value in properties if name == "documents"):
        terminalreporter.write_line(line)
    absent = Counter(why for name, why in properties if name == "not on")
    for why, count in sorted(absent.items()):
        terminalreporter.write_line(f"{count} tests are not on {why}")
    skipped = terminalreporter.stats.get("skipped", [])
    if config.option.turn is not None:
        late = {report.nodeid: unit for report in skipped for name, unit in report.user_properties if name == _LATE}
        for line in summary(config.stash.get(_UNTOUCHED, {}), late, config.option.turn):
            terminalreporter.write_line(line)
    for reason, tests in sorted(not_run_tests(skipped).items()):
        terminalreporter.section(f"{len(tests)} tests not run", sep="-")
        terminalreporter.write_line(reason)
        for test in sorted(tests):
            terminalreporter.write_line(f"    {test}")
    if config.option.verbose < 0:  # then there was no header
        terminalreporter.write_line(pytest_report_header(config))


@attrs.define
class Seeds:
    """`for seed in seeds(20)`: as many seeds as asked for; a failure names the one it happened with."""

    base: int
    only: int | None
    count: int | None
    present: int | None = None

    def __call__(self, count: int) -> Iterator[int]:
        wanted = [self.only] if self.only is not None else range(self.base, self.base + (self.count or count))
        for self.present in wanted:
            yield self.present
        self.present = None


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> Seeds:
    option = request.config.option
    request.node.seeds = Seeds(option.base_seed, option.seed, option.seeds)
    return request.node.seeds


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    if call.excinfo is not None:
        call.excinfo = outcome(call.excinfo)
    report = yield
    used: Seeds | None = getattr(item, "seeds", None)
    if report.failed and used is not None and used.present is not None:
        report.sections.append(("seed", f"again with: pytest {item.nodeid!r} --seed {used.present}"))
    return report


@attrs.frozen
class Home:
    """The directories of one test, as the environment names them to whatever the test starts."""

    mark: str
    state: Path
    runtime: Path


@pytest.fixture(autouse=True)
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """State and runtime directories of this test alone; fails the test if it leaves a process, a port or a file behind.

    The runtime directory is short and not under `tmp_path`: the path of a Unix socket is limited to 107 bytes.
    """
    _begin_what_is_shared(request)
    found = Home(
        f"{watchdog.run_id()}.{uuid.uuid4().hex[:12]}",
        tmp_path / "state",
        Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp")),
    )
    monkeypatch.setenv(leftovers.MARK, found.mark)
    monkeypatch.setenv("TRAINMASTER_STATE_DIR", str(found.state))
    monkeypatch.setenv("TRAINMASTER_RUNTIME_DIR", str(found.runtime))
    for name in [name for name in os.environ if name.startswith("TRAINMASTER_") and name not in _OURS]:
        monkeypatch.delenv(name)
    before = leftovers.children(), leftovers.listening(), leftovers.shared_memory()
    try:
        yield found
        _assert_nothing_left(found, tmp_path, *before)
    except BaseException:
        leftovers.wait_gone(found.mark, [tmp_path, found.runtime], patience=0)
        raise
    finally:
        shutil.rmtree(found.runtime, ignore_errors=True)


def _begin_what_is_shared(request: pytest.FixtureRequest) -> None:
    """A server of the whole run that a parameter asks for, and no argument does: it is nobody's to leave behind."""
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    if "s3" in [value for value in parameters.values() if isinstance(value, str)]:
        request.getfixturevalue("s3_server")
    if any(isinstance(value, str) and value.startswith(KUBERNETES) for value in parameters.values()):
        request.getfixturevalue("s3_for_pods")
    if "spark" in parameters.values():
        request.getfixturevalue("on_spark")


_OURS = (leftovers.MARK, "TRAINMASTER_STATE_DIR", "TRAINMASTER_RUNTIME_DIR")


def _assert_nothing_left(found: Home, tmp_path: Path, children: set[int], ports: set[str], segments: set[str]) -> None:
    left = leftovers.wait_gone(found.mark, [tmp_path, found.runtime])
    assert not left, f"left processes behind: {left}"
    # Of some a thread of ours waits for the end.
    until(lambda: not leftovers.children() - children, what=lambda: f"left children: {leftovers.children() - children}")
    assert not (more := leftovers.listening() - ports), f"left listening: {more}"
    assert not (more := leftovers.shared_memory() - segments), f"left files behind: {more}"
    assert not (more := leftovers.runtime_files(found.runtime)), f"left in the runtime directory: {more}"
    assert not (more := [path.name for path in found.state.glob("live/*")]), f"left unfinished jobs: {more}"
