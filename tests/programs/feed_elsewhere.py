"""Feed partitions as Spark's tasks would, on a machine that has another name (`boot_id`), which the caller sees to.

Reads one JSON object from stdin: link (see `runtime.feed.master`), partitions (the values of each) and bytes (of each row, beside), and
whether readers give results. Writes the errors that feeders ended with, the addresses to which streams were opened, where the feed ended,
and the results of each partition.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from trainmaster.runtime.feed import stream
from trainmaster.runtime.feed.channel import FeedError
from trainmaster.runtime.feed.exchange import Exchange
from trainmaster.runtime.feed.master import Master, RunAgain
from trainmaster.runtime.feed.partition import Partition
from trainmaster.runtime.feed.rows import batches

order = json.load(sys.stdin)
link, partitions = order["link"], order["partitions"]
errors: list[str] = []
streamed: list[str] = []
results: list[list[Any]] = [[] for _ in partitions]
connect = stream.Stream.__init__


def noted(self: stream.Stream, address: str, *arguments: object) -> None:
    connect(self, address, *arguments)  # type: ignore[arg-type]
    streamed.append(address)


stream.Stream.__init__ = noted  # type: ignore[assignment, method-assign]


def columns(index: int) -> Any:
    rows = ({"value": value, "more": bytes(order["bytes"])} for value in range(*partitions[index]))
    return batches(rows, most=100)


def exchange(index: int) -> None:
    try:
        results[index] += Exchange(link, index, index).results(columns(index))
    except FeedError as error:
        errors.append(str(error))


def feed(number: int, index: int) -> None:
    for try_ in range(1, 100):
        try:
            Partition(link, (number, index), 100 * index + try_).feed(columns(index))
            return
        except RunAgain:
            continue
        except FeedError as error:
            errors.append(str(error))
            return


master = Master(link)
if order["results"]:
    number = -1
    threads = [threading.Thread(target=exchange, args=(index,)) for index in range(len(partitions))]
else:
    number = master.ask("begin", partitions=len(partitions))["round"]
    threads = [threading.Thread(target=feed, args=(number, index)) for index in range(len(partitions))]
for thread in threads:
    thread.start()
print("feeding", flush=True)
for thread in threads:
    thread.join()
while number >= 0:
    figures = master.ask("figures", round=number, wait=True)
    for index in figures.get("lost", ()):
        feed(number, index)
    if not figures.get("lost") and figures["do"] != "wait":
        break
while (end := master.ask("end"))["do"] == "wait":
    pass
print(json.dumps({"errors": errors, "streamed": streamed, "rows": end.get("rows"), "results": results}))
