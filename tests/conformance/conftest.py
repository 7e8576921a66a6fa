"""Each test that takes `engine` is there once for each engine that has what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.engines import Engine, Local, Yarn
from conformance.kubernetes_engine import BesideClient, Kubernetes, OnHost
from conformance.netns_engine import Netns, netns
from conformance.spark_engine import Spark
from hadoop import revived
from parts import need_network_namespaces
from s3 import lead_to

__all__ = ["netns"]  # a fixture

ROWS: dict[str, type[Engine]] = {
    "local": Local, "yarn": Yarn, "kubernetes": Kubernetes, "kubernetes-host": OnHost, "kubernetes-client": BesideClient,
    "netns": Netns, "spark": Spark,
}  # fmt: skip
ALONE = {"kubernetes-host": "frameworks"}  # rows of those tests alone that need this
# Of the brief tests: what a row runs in `make test`, or in `make test-full`; the others are one step later.
SHORT = {
    "kubernetes": (
        "test_success", "test_failure", "test_the_masters_death_is_not_noticed_by_programs", "test_outputs_of_every_task",
        "test_ranks_addresses_and_a_place_of_each_tasks_own", "test_a_gang_starts_together",
    ),
}  # fmt: skip
# Brief tests that rows run in `make test-full` alone: they try code that all engines share, over files, output and commands that other
# tests have seen come and go there.
SHARED = (
    "test_a_group_restarts_whole", "test_both_streams_are_kept_in_order", "test_a_checkpoint_is_restored_before_the_next_attempt",
    "test_each_task_has_a_copy_of_the_files", "test_the_job_is_listed_followed_and_found_again",
)  # fmt: skip
LATER = {"yarn": SHARED, "netns": SHARED}
BRIEF = {  # rows of brief tests alone
    "kubernetes-client": (
        "test_success", "test_failure", "test_the_masters_death_is_not_noticed_by_programs", "test_outputs_of_every_task",
        "test_a_gang_starts_together",
    ),
}  # fmt: skip
# Rows that run these in `make test-full`, and all others in the soak.
SOME = {
    "spark": (
        "test_success", "test_failure", "test_a_task_restarts_alone",
        "test_a_user_has_a_group_shrink_and_grow",
        "test_a_user_ends_the_attempt_of_one_task", "test_tasks_that_restart_alone_come_and_go_alone", "test_a_gang_starts_together",
        "test_ranks_addresses_and_a_place_of_each_tasks_own", "test_outputs_of_every_task",
        "test_downloaded_files_are_split_over_the_tasks", "test_shards", "test_a_save_while_it_runs",
        "test_a_checkpoint_is_restored_before_the_next_attempt", "test_records_go_through_programs_once_each",
        "test_a_secret_is_on_no_command_line",
    ),
}  # fmt: skip
# Where a job takes ten seconds, what is not brief is for the soak.
LONG = {
    "yarn": pytest.mark.full,
    "netns": pytest.mark.full,
    "kubernetes": pytest.mark.soak,
    "kubernetes-host": pytest.mark.soak,
}
MARKS = {
    "yarn": pytest.mark.xdist_group("hadoop"),
    "kubernetes": pytest.mark.xdist_group("kubernetes"),
    "kubernetes-host": pytest.mark.xdist_group("kubernetes"),
    "kubernetes-client": pytest.mark.xdist_group("kubernetes"),
    "netns": pytest.mark.xdist_group("netns"),  # which packs the runtime once
    "spark": pytest.mark.xdist_group("spark"),
}


def _needs(of: pytest.Metafunc | pytest.Item) -> list[str]:
    found = of.definition if isinstance(of, pytest.Metafunc) else of
    return [name for mark in found.iter_markers("needs") for name in mark.args]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" not in metafunc.fixturenames:
        return
    test, brief = metafunc.definition.name, metafunc.definition.get_closest_marker("brief") is not None
    rows = []
    for name, row in ROWS.items():
        needs = _needs(metafunc)
        if any(need in row.lacks for need in needs) or (name in ALONE and ALONE[name] not in needs):
            continue
        if name in BRIEF and not brief:
            continue
        marks = [MARKS[name]] if name in MARKS else []
        if name in BRIEF:
            marks.append(pytest.mark.full if test in BRIEF[name] else pytest.mark.soak)
        elif name in SOME:
            marks.append(pytest.mark.full if test in SOME[name] else pytest.mark.soak)
        elif name in LONG and not brief:
            marks.append(LONG[name])
        elif test in LATER.get(name, ()) or test not in SHORT.get(name, [test]):
            marks.append(pytest.mark.full)
        rows.append(pytest.param(name, marks=marks))
    metafunc.parametrize("engine", rows, indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    for name, row in ROWS.items():
        for need in _needs(request.node):
            if need in row.lacks:  # for the end of the run: see tests/conftest.py
                request.node.user_properties.append(("not on", f"{name}: {row.lacks[need]}"))
    folder = tmp_path / "place"
    folder.mkdir()
    made = _made(request, folder, monkeypatch)
    try:
        yield made
    finally:
        made.close()


def _made(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    if request.param == "yarn":
        cluster = request.getfixturevalue("on_hadoop")
        revived(cluster)
        return Yarn(folder, cluster)
    if request.param.startswith("kubernetes"):
        cluster, server = request.getfixturevalue("on_kubernetes"), request.getfixturevalue("s3_for_pods")
        lead_to(server, monkeypatch)
        monkeypatch.setenv("TRAINMASTER_SITE", "")  # the row's own, until the test is over
        made = ROWS[request.param]
        assert issubclass(made, Kubernetes)
        return made(folder, cluster, server)
    if request.param == "netns":
        need_network_namespaces()
        return Netns(folder, monkeypatch)
    if request.param == "spark":
        return Spark(folder, request.getfixturevalue("on_spark"))
    return Local(folder)
