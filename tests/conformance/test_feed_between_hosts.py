"""A feeder on another host than the readers: batches go by streams to their agents. Hosts are network namespaces, and the feeder's, which
has a name of its own, is one too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import LIMIT, Submitted, python, workers
from conformance.netns_engine import Netns
from parts import need_network_namespaces
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
SLOWLY = "del batch; __import__('time').sleep(0.05)"


@pytest.fixture
def netns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Netns]:
    need_network_namespaces()
    folder = tmp_path / "place"
    folder.mkdir()
    engine = Netns(folder, monkeypatch)
    try:
        yield engine
    finally:
        engine.close()


class Elsewhere:
    """A process on a host of its own that feeds a job's readers."""

    def __init__(self, netns: Netns, job: Submitted, partitions: list[tuple[int, int]], size: int = 0) -> None:
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
            json.dumps({"link": link_of(job.run, "input"), "partitions": partitions, "bytes": size})
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
