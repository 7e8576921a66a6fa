"""Many tasks on simulated nodes: granted, preempted in part, granted again, finished."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import pytest
from kubernetes import own_kubernetes
from many_tasks import IMAGE, LIMIT, submitted, through

from trainmaster.clusters.kubernetes import Settings

pytestmark = pytest.mark.xdist_group("kubernetes")


@pytest.mark.parametrize(
    ("nodes", "taken"),
    [pytest.param(50, 10, marks=pytest.mark.full), pytest.param(500, 50, marks=[pytest.mark.full, pytest.mark.soak])],
)
def test_many_tasks_some_of_which_give_way(nodes: int, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs no restart, and each of them is told why. (The figures are printed; `benchmarks/kubernetes_tasks1000.py` makes them.)"""
    with own_kubernetes(Settings(nodes=0, simulated=nodes)) as cluster:
        for name, value in {**cluster.environ, "TRAINMASTER_KUBERNETES_IMAGE": IMAGE}.items():
            monkeypatch.setenv(name, value)
        run = submitted(2 * nodes)
        try:
            print(asyncio.run(through(cluster, run, 2 * nodes, taken)), file=sys.stderr)
            status = run.status()
            assert status["state"] == "succeeded"
            told = [event for event in run.events() if event["type"] == "attempt-written-off"]
            # On a machine that 1,000 agents keep busy, a simulated node's heartbeat may come too late.
            assert {event["reason"] for event in told} - {"node-lost"} == {"preempted"}
            attempts = Counter(event["task"] for event in told)
            assert {task["task"]: task["attempt"] - 1 for task in status["tasks"] if task["attempt"] > 1} == attempts
            assert taken <= len(told) < 2 * taken  # the scheduler may take a second one for the same pod
        finally:
            run.kill()
            run.wait(LIMIT, check=False)
