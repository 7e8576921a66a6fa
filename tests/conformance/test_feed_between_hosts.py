"""A feeder on another host than the readers: batches go by streams to their agents. Hosts are network namespaces, and the feeder's, which
has a name of its own, is one too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import LIMIT, Submitted, python, workers
from conformance.netns_engine import Netns
from waiting import until

from trainmaster.client.jobs.past import Past
from trainmaster.core.input.audit import audit
from trainmaster.core.machine.events import decode
from trainmaster.log.reader import Reader, replay
from trainmaster.spark.feed import link_of

pytestmark = pytest.mark.full
PROGRAM = Path(__file__).parents[1] / "programs" / "feed_elsewhere.py"
# It becomes another host: what a kernel calls itself is read from a file, over which another one is laid.
ELSEWHERE = 'mount --bind "$1" /proc/sys/kernel/random/boot_id; shift; exec "$@"'
READS = """
    import json
    from trainmaster.runtime import feed
    values = []
    for batch in feed.open("input"):
        values += batch["value"].tolist()
        {extra}
    print(json.dumps(values))
"""
ANSWERS = """
    import os
    from trainmaster.runtime import feed
    attempt, index = os.environ["TRAINMASTER_ATTEMPT"], os.environ["TRAINMASTER_INDEX"]
    reader = feed.open("input")
    for count, batch in enumerate(reader):
        {extra}
        reader.answer(batch, [(value, index + "x" * 1000) for value in batch["value"].tolist()])
"""
SLOWLY = "del batch; __import__('time').sleep(0.05)"


class Elsewhere:
    """A process on a host of its own that feeds a job's readers."""

    def __init__(
        self, netns: Netns, job: Submitted, partitions: list[tuple[int, int]], size: int = 0, results: bool = False
    ) -> None:  # fmt: skip
        network = f"/proc/{netns._process.pid}/ns/net"
        subprocess.run(["nsenter", f"--net={network}", "ip", "addr", "add", "10.77.255.1/16", "dev", "br0"], check=True)
        name = netns.folder / "boot_id"
        name.write_text(f"{uuid.uuid4()}\n")
        self.process = subprocess.Popen(
            ["nsenter", f"--net={network}", "unshare", "--mount", "sh", "-ec", ELSEWHERE, "sh", str(name), sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(
            json.dumps({"link": link_of(job.run, "input"), "partitions": partitions, "bytes": size, "results": results})
        )
        self.process.stdin.close()
        assert self.process.stdout.readline() == "feeding\n"

    def answer(self) -> Any:
        assert self.process.stdout is not None
        with self.process, self.process.stdout:
            return json.loads(self.process.stdout.read())


def read(job: Submitted, index: int) -> list[int]:
    rows: list[int] = json.loads(job.lines(f"worker:{index}")[-1])
    return rows


def test_readers_of_other_hosts_read_each_row_in_step(netns: Netns) -> None:
    job = netns.submit(workers(python(READS.format(extra="pass")), 2, feed={"input": {"memory": "1MiB"}}))
    fed = Elsewhere(netns, job, [(0, 2000), (5000, 5030), (9000, 9000), (9000, 9950)]).answer()
    job.succeeded()
    assert fed["errors"] == []
    assert len({address.rpartition(":")[0] for address in fed["streamed"]}) == 2, "both agents had a stream"
    first, second = read(job, 0), read(job, 1)
    assert len(first) == len(second) == fed["rows"]
    assert len({*first, *second}) == 2 * fed["rows"], "a row was read twice"
    assert 2980 - 2 * fed["rows"] < 400


@pytest.mark.parametrize("seconds", [1, 20])
def test_a_network_that_is_cut_in_the_middle_loses_and_doubles_nothing(netns: Netns, seconds: int) -> None:
    feed = {"input": {"memory": "1MiB", "agreed": False}}
    program = python(READS.format(extra=SLOWLY))
    job = netns.submit(workers(program, 2, feed=feed, restart={"scope": "task", "limit": 3}))
    elsewhere = Elsewhere(netns, job, [(0, 8000), (10_000, 18_000)], 1000)
    until(lambda: job.told("feed-read"), LIMIT, what="some was read")
    netns.cut(job.task("worker:0")["node"], seconds)
    fed = elsewhere.answer()
    job.succeeded(LIMIT)
    assert fed["errors"] == []
    rows = [*read(job, 0), *read(job, 1)]
    assert sorted(rows) == [*range(8000), *range(10_000, 18_000)]
    [verdict] = audit(replay(Reader(Past(job.id).storage), decode)).feeds
    assert verdict.faults == ()


PARTS = [(0, 3000), (3000, 3001), (9000, 9000), (9000, 14_000)]


def test_results_come_back_from_readers_of_other_hosts(netns: Netns) -> None:
    job = netns.submit(workers(python(ANSWERS.format(extra="pass")), 2, feed={"input": {"memory": "1MiB"}}))
    fed = Elsewhere(netns, job, PARTS, results=True).answer()
    job.succeeded()
    assert fed["errors"] == []
    assert fed["streamed"]
    assert [[value for value, _ in part] for part in fed["results"]] == [list(range(*part)) for part in PARTS]
    assert {len(mark) for part in fed["results"] for _, mark in part} == {1001}


def test_a_reader_that_dies_loses_and_doubles_no_result_of_another_host(netns: Netns) -> None:
    program = python(ANSWERS.format(extra="os.kill(os.getpid(), 9) if attempt == '1' and count == 5 else None"))
    job = netns.submit(workers(program, 2, feed={"input": {"memory": "1MiB"}}, restart={"scope": "task", "limit": 3}))
    fed = Elsewhere(netns, job, PARTS, results=True).answer()
    job.succeeded()
    assert fed["errors"] == []
    assert len(job.told("started")) > 2, "a reader has died"
    assert [[value for value, _ in part] for part in fed["results"]] == [list(range(*part)) for part in PARTS]


def test_a_network_that_is_cut_loses_and_doubles_no_result(netns: Netns) -> None:
    program = python(ANSWERS.format(extra="__import__('time').sleep(0.02)"))
    job = netns.submit(workers(program, 2, feed={"input": {"memory": "1MiB"}}, restart={"scope": "task", "limit": 3}))
    elsewhere = Elsewhere(netns, job, [(0, 8000), (10_000, 18_000)], 1000, results=True)
    until(lambda: job.told("feed-read"), LIMIT, what="some was read")
    netns.cut(job.task("worker:0")["node"], 12)
    fed = elsewhere.answer()
    job.succeeded(LIMIT)
    assert fed["errors"] == []
    assert [[value for value, _ in part] for part in fed["results"]] == [[*range(8000)], [*range(10_000, 18_000)]]
