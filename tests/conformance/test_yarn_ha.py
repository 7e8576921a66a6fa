"""Two ResourceManagers, of which one serves: jobs outlive each of them, and are submitted to whichever it is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.engines import Yarn, yarn_on
from conformance.test_clusters import lives, running
from hadoop import own_hadoop, revived
from waiting import until

from trainmaster.clusters.hadoop import Cluster, Settings
from trainmaster.host import linux

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.full]

TELL = 240.0  # s for the other to serve, and for a job to end; reached by a failure alone


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    with own_hadoop(Settings(nodes=1, high_availability=True)) as started:
        yield started


@pytest.fixture
def yarn(pair: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yarn]:
    with yarn_on(pair, tmp_path, monkeypatch) as made:
        yield made


def other_serves(pair: Cluster) -> str:
    """The ResourceManager that serves is killed; which one serves now."""
    first = until(lambda: pair.active, TELL, what="a ResourceManager that serves")
    pair.daemon(first).kill()
    return until(lambda: pair.active if pair.active != first else "", TELL, what="the other ResourceManager")


def test_a_job_goes_on_with_the_other_resource_manager(pair: Cluster, yarn: Yarn) -> None:
    """No program notices, and the other grants what is asked for afterwards; then it dies too, and the first has come back."""
    job = running(yarn)
    pids = [int(job.lines(f"worker:{index}")[0].split()[1]) for index in range(2)]
    second = other_serves(pair)
    assert all(map(lives, pids))
    os.kill(linux.look(job.attempt(1, "worker:1")["pid"]).parent, signal.SIGKILL)
    job.until_line("attempt 2", "worker:1")
    revived(pair)
    assert other_serves(pair) != second
    yarn.write("go", "")
    status = job.succeeded(TELL)
    assert (status["epoch"], [task["attempt"] for task in status["tasks"]]) == (1, [1, 2])
    until(
        lambda: yarn.client().application_state(yarn.application(job))[0] == "ended",
        TELL,
        what="YARN's word of the end",
    )


def test_a_job_is_submitted_while_one_of_them_is_dead(pair: Cluster, yarn: Yarn) -> None:
    other_serves(pair)
    yarn.write("go", "")
    running(yarn).succeeded(TELL)
