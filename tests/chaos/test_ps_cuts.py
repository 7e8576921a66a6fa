"""The network of a parameter server is cut while a worker pushes, or that between two servers: nothing closes, nothing answers. No push is
lost or applied twice.
"""

from __future__ import annotations

import sys

import pytest
from conformance.engines import Submitted, python, role
from conformance.netns_engine import Netns

pytestmark = pytest.mark.full

LIMIT = 180.0  # s; reached by a failure alone
STEPS = 120
WORKER = python(f"""
    import time
    import numpy
    from trainmaster.ps.client import TableSpec, Updates
    from trainmaster.ps.job import from_job

    with from_job(servers=2) as client:
        optimizer = {{"name": "SGD", "learning_rate": 1.0}}
        client.define({{"steps": numpy.zeros(1)}}, {{"seen": TableSpec(4, seed=1)}}, optimizer, Updates(tolerance=None))
        ids = numpy.arange(20)
        first = client.pull(rows={{"seen": ids}}).rows["seen"]
        for step in range({STEPS}):
            client.push(client.version, {{"steps": -numpy.ones(1)}}, {{"seen": (ids, -numpy.ones((20, 4)))}})
            print("pushed", step, flush=True)
            time.sleep(0.1)
        pulled = client.pull(rows={{"seen": ids}})
        print("steps", pulled.dense["steps"][0], pulled.version)
        print("rows", (abs(pulled.rows["seen"] - first - {STEPS}) < 1e-3).all())
""")


def started(netns: Netns) -> Submitted:
    """A job of two servers and a worker, which has pushed some."""
    serving = role(
        [sys.executable, "-m", "trainmaster.ps", "--servers", "2"], 2, ports=["ps"], restart={"scope": "group"}
    )
    roles = {"ps": serving, "worker": role(WORKER, 1, after={"ps": "running"})}
    job = netns.submit(roles, timeouts={"grace": "60s"})
    job.until_line("pushed 5")
    return job


def check_end(job: Submitted) -> None:
    """Fail unless each task had one attempt, and all pushes were applied once."""
    status = job.succeeded(LIMIT)
    assert {task["attempt"] for task in status["tasks"]} == {1}, job.story(status)
    assert job.lines()[STEPS:] == [f"steps {STEPS:.1f} {STEPS}", "rows True"]


@pytest.mark.parametrize("index", [0, 1])
def test_the_network_of_a_parameter_server_is_cut(netns: Netns, index: int) -> None:
    job = started(netns)
    netns.cut(job.task(f"ps:{index}")["node"], 20.0)
    check_end(job)


def test_the_network_between_two_servers_is_cut_and_they_say_so(netns: Netns) -> None:
    job = started(netns)
    with netns.cut_between(job, job.task("ps:0")["node"], job.task("ps:1")["node"]):
        job.until_status(
            "server 1 waits",
            lambda status: [task.get("doing") for task in status["tasks"]][1] == "waiting for server 0",
        )
    check_end(job)
