"""Rows that go to readers and come back as results, on this machine and without Spark: one a row, whatever fails."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import trainmaster
from trainmaster.client.jobs.past import Past
from trainmaster.core.input.audit import audit
from trainmaster.core.machine.events import decode
from trainmaster.log.reader import Reader, replay
from trainmaster.runtime.feed.channel import FeedError
from trainmaster.runtime.feed.exchange import Exchange
from trainmaster.runtime.feed.master import Master
from trainmaster.runtime.feed.rows import batches
from trainmaster.spark.feed import link_of

ANSWERS = """
    import os, time
    from trainmaster.runtime import feed
    reader = feed.open("input")
    attempt, index = int(os.environ["TRAINMASTER_ATTEMPT"]), int(os.environ["TRAINMASTER_INDEX"])
    for count, batch in enumerate(reader):
        {extra}
        reader.answer(batch, [(value, index) for value in batch["value"].tolist()])
"""
LIMIT = 120.0  # s


class Asked:
    """A job of two readers that answer, and exchanges with them, each in a thread as in a task of Spark's."""

    def __init__(self, extra: str = "pass", **keys: Any) -> None:
        program = textwrap.dedent(ANSWERS).format(extra=extra)
        role = {
            "command": [sys.executable, "-u", "-c", program], "replicas": 2, "resources": {"cores": 0.05, "memory": "64MiB"},
            "feed": {"input": {"memory": "1MiB"}}, **keys,
        }  # fmt: skip
        self.run = trainmaster.submit(trainmaster.Job(name="asked", roles={"worker": role}))
        self.link = link_of(self.run, "input")
        self.errors: list[Exception] = []

    def results(self, partitions: list[range]) -> list[list[Any]]:
        found: list[list[Any]] = [[] for _ in partitions]

        def exchange(index: int) -> None:
            try:
                found[index] += self.of(index, partitions[index])
            except Exception as error:  # noqa: BLE001
                self.errors.append(error)

        threads = [threading.Thread(target=exchange, args=(index,)) for index in range(len(partitions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), "an exchange waits for ever"
        return found

    def of(self, index: int, rows: range) -> Iterator[Any]:
        return Exchange(self.link, index, index).results(batches(rows, 100))

    def end(self) -> None:
        master = Master(self.link)
        while master.ask("end")["do"] == "wait":
            pass
        master.close()


@pytest.fixture
def parts() -> list[range]:
    return [range(3000), range(3000, 3001), range(0), range(4000, 9000)]


def test_each_row_has_one_result_in_its_place(home: Any, parts: list[range]) -> None:
    asked = Asked()
    for _ in range(2):  # as two actions on one RDD
        results = asked.results(parts)
        assert [[value for value, _ in part] for part in results] == [list(part) for part in parts]
    half = asked.of(7, range(100_000))  # Spark's `take` leaves it where it is
    assert next(half)[0] == 0
    half.close()
    assert [value for value, _ in asked.of(8, range(10))] == list(range(10))
    with pytest.raises(FeedError, match="this feed gives results: train with another feed"):
        Master(asked.link).ask("begin", partitions=1)
    asked.end()
    assert asked.run.wait(LIMIT)["state"] == "succeeded"
    with pytest.raises(FeedError):
        list(asked.of(9, range(10)))
    assert asked.errors == []
    [account] = audit(replay(Reader(Past(asked.run.id).storage), decode)).feeds
    assert account.faults == ()


def test_a_reader_that_dies_loses_no_result_and_doubles_none(home: Any, parts: list[range]) -> None:
    extra = "os.kill(os.getpid(), 9) if attempt == 1 and count == 5 else None"
    asked = Asked(extra, restart={"scope": "task", "limit": 3})
    results = asked.results(parts)
    assert asked.errors == []
    assert [[value for value, _ in part] for part in results] == [list(part) for part in parts]
    asked.end()
    assert asked.run.wait(LIMIT)["state"] == "succeeded"


def test_a_job_that_fails_is_the_error_of_an_exchange(home: Any, parts: list[range]) -> None:
    asked = Asked("reader.answer(batch, [0])", restart={"scope": "never"})
    asked.results([range(1000)])
    [error] = asked.errors
    assert "exited with status 1" in str(error)
    assert "| ValueError: there are 1 results for 100 rows: give one result a row" in str(error)
    asked.run.wait(LIMIT, check=False)
    assert any("there are 1 results for 100 rows: give one result a row" in line for line in asked.run.logs())


def test_readers_that_end_leave_rows_without_a_result(home: Any) -> None:
    asked = Asked("break")
    asked.results([range(100_000)])
    [error] = asked.errors
    assert isinstance(error, FeedError)
    assert asked.run.wait(LIMIT)["state"] == "succeeded"
