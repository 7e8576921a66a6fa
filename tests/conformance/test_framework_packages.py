"""A framework of another package (tests/ring_framework) on machines that have the runtime archive and nothing else of ours."""

from __future__ import annotations

import pytest
from conformance.engines import workers
from conformance.netns_engine import Netns


@pytest.mark.full
def test_a_framework_of_another_package_travels_to_a_cluster(netns: Netns) -> None:
    command = "echo $RING_PLACE of $RING_SIZE, then $RING_NEXT"
    job = netns.submit(workers(command, 2, restart={"scope": "group"}), framework="ring", gang=True)
    job.succeeded()
    printed = [job.lines(f"worker:{index}")[0] for index in (0, 1)]
    assert [line.partition(",")[0] for line in printed] == ["0 of 2", "1 of 2"]
    assert len({line.rpartition(" ")[2] for line in printed}) == 2, "each is sent to the other"
