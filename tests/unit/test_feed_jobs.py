"""Feeders, agents, readers and the master of one job, all real, on this machine and without Spark."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
import time
from typing import Any

import trainmaster
from trainmaster.client.jobs.past import Past
from trainmaster.core.input.audit import FeedAudit, audit
from trainmaster.core.machine.events import decode
from trainmaster.log.reader import Reader, replay
from trainmaster.runtime.feed.channel import FeedError
from trainmaster.runtime.feed.master import Master, RunAgain
from trainmaster.runtime.feed.partition import Partition
from trainmaster.runtime.feed.rows import batches
from trainmaster.spark.feed import link_of
from trainmaster.words.events import event_line

READS = """
    import json, os, sys
    from trainmaster.runtime import feed
    values = []
    reader = feed.open("input")
    for batch in reader:
        values += batch["value"].tolist()
        {extra}
    print(json.dumps(values))
"""
LIMIT = 120.0  # s
FED = {"feed-read", "feed-ended"}  # the events of feeds, which the simulated world has not


class Fed:
    """A job of two readers, and what feeds it: a thread for each partition, which tries again as Spark would."""

    def __init__(self, extra: str = "pass", **keys: Any) -> None:
        program = textwrap.dedent(READS).format(extra=extra)
        role = {
            "command": [sys.executable, "-u", "-c", program], "replicas": 2, "resources": {"cores": 0.05, "memory": "64MiB"},
            "feed": {"input": {"memory": "1MiB"}}, **keys,
        }  # fmt: skip
        self.run = trainmaster.submit(trainmaster.Job(name="fed", roles={"worker": role}))
        self.link = link_of(self.run, "input")
        self.master = Master(self.link)
        self.errors: list[Exception] = []
        self.tries = 0

    def put(self, partitions: list[range]) -> int:
        number: int = self.master.ask("begin", partitions=len(partitions))["round"]
        threads = [
            threading.Thread(target=self._feed, args=(number, index, part)) for index, part in enumerate(partitions)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), "a feeder waits for ever"
        return number

    def _feed(self, number: int, index: int, rows: range) -> None:
        while True:
            self.tries += 1
            try:
                Partition(self.link, (number, index), self.tries).feed(batches(rows, most=100))
            except RunAgain:
                continue
            except FeedError as error:
                self.errors.append(error)
            return

    def end(self, number: int, partitions: list[range]) -> dict[str, Any]:
        """Feed again what was lost, then end the feed."""
        while True:
            figures = self.master.ask("figures", round=number, wait=True)
            if figures.get("lost"):
                for index in figures["lost"]:
                    self._feed(number, index, partitions[index])
            elif figures["do"] != "wait":
                return self.ask("end")

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Ask the master until it need not be asked again."""
        limit = time.monotonic() + LIMIT
        while (answer := self.master.ask(do, **fields))["do"] == "wait":
            assert time.monotonic() < limit, answer
        return answer

    def values(self) -> list[list[int]]:
        """Return what each reader read, by its last attempt."""
        return [json.loads(list(self.run.logs(f"worker:{index}"))[-1]) for index in range(2)]

    def audit(self) -> FeedAudit:
        [feed] = audit(replay(Reader(Past(self.run.id).storage), decode)).feeds
        return feed


def test_two_ranks_read_the_same_number_of_rows() -> None:
    fed = Fed()
    assert fed.ask("readers", there=True) == {"do": "readers", "granted": 2, "least": 2}
    partitions = [range(2000), range(5000, 5030), range(0), range(9000, 9950)]
    fed.put(partitions)
    rows = fed.ask("end")["rows"]
    assert fed.run.wait(LIMIT)["state"] == "succeeded"
    first, second = fed.values()
    assert len(first) == len(second) == rows
    assert len({*first, *second}) == 2 * rows, "a row was read twice"
    verdict = fed.audit()
    assert (verdict.faults, verdict.rows, verdict.left, verdict.end) == ((), 2 * rows, 2980 - 2 * rows, rows)
    assert verdict.left < 400
    lines = {event["type"]: event_line(event) for event in fed.run.events() if event["type"] in FED}
    assert lines.keys() == FED
    assert not [line for line in lines.values() if "?" in line]


def test_what_a_lost_reader_had_not_read_goes_to_others() -> None:
    extra = "\n    ".join(
        [
            "if len(values) >= 500 and os.environ['TRAINMASTER_ATTEMPT'] + os.environ['TRAINMASTER_INDEX'] == '10':",
            "    del batch",
            "    os._exit(3)",
        ]
    )
    fed = Fed(extra, feed={"input": {"memory": "1MiB", "agreed": False}}, restart={"scope": "task", "limit": 2})
    partitions = [range(3000), range(3000, 6000), range(6000, 9000)]
    number = fed.put(partitions)
    assert fed.end(number, partitions)["do"] == "done"
    assert fed.run.wait(LIMIT)["state"] == "succeeded"
    verdict = fed.audit()
    assert (verdict.faults, verdict.batches) == ((), 90)
    first, second = fed.values()
    assert len({*first, *second}) == len(first) + len(second) >= 9000 - 700, "a row was read twice"
    assert not fed.errors


def test_feeders_hear_at_once_why_the_job_failed() -> None:
    fed = Fed("sys.exit('no more')", restart={"scope": "never"})
    fed.put([range(500_000), range(500_000)])
    assert fed.run.wait(LIMIT, check=False)["state"] == "failed"
    assert len(fed.errors) == 2
    assert all("exited with status 1" in str(error) for error in fed.errors), fed.errors


def test_a_reader_that_stops_ends_the_feed() -> None:
    fed = Fed("reader.terminate()")
    fed.put([range(500_000), range(500_000)])
    assert not fed.errors
    assert fed.run.wait(LIMIT)["state"] == "succeeded"
