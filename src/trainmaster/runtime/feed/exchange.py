"""Feed the rows of one partition to a reader of this host, and get a result for each, in their order.

An exchange keeps the batches whose rows have no result yet. Where their reader is lost, or wants nothing more, it gives them to another
one, and drops the results that it had already. So each row gets one result, whoever dies; a task that Spark runs again begins anew.
"""

from __future__ import annotations

from collections import deque

from .channel import Channel, FeedError, FeedGone
from .layout import Layout
from .master import Master
from .partition import machine
from .results import received

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from .channel import Message
    from .layout import Column
    from .master import Link

PATIENCE = 3.0  # s without a master: in an application none comes back
LATER_PATIENCE = 0.5  # s, of a task that Spark tries again


class Exchange:
    """The exchange of one partition. `try_`: the number of Spark's task. `patience`: s without a master. `is_over`: as of `Master`."""

    def __init__(
        self, link: Link, partition: int, try_: int, patience: float = PATIENCE, is_over: Callable[[], bool] = bool
    ) -> None:
        self._master, self._partition, self._try = Master(link, is_over, patience), partition, try_
        self._channel: Channel | None = None
        self._round = 0  # of the present reader: batches are numbered anew for each
        self._ring: list[Any] | None = None  # the one that was lost last
        self._open: deque[Layout] = deque()  # batches whose rows have not all a result
        self._put = 0  # of these, lie in the present ring
        self._first = 0  # number of the first of these
        self._answered = 0  # rows of the first of these that have a result
        self._again = 0  # rows whose results come a second time
        self._ready: deque[list[Any]] = deque()

    def results(self, batches: Iterable[Sequence[Column]]) -> Iterator[Any]:
        """Yield the result of each row. Raises Ended where the job has, or nobody reads any more, and FeedError."""
        coming = map(Layout, batches)
        following = next(coming, None)
        try:
            while self._open or following is not None:
                if following is not None and self._put == len(self._open):
                    self._open.append(following)
                    following = next(coming, None)
                try:
                    if self._put < len(self._open):
                        is_last = following is None and self._put == len(self._open) - 1
                        self._offer(self._open[self._put], "last" if is_last else "more")
                    else:
                        self._await("answer")
                except FeedGone:
                    self._lose()
                while self._ready:
                    yield from self._ready.popleft()
        finally:
            self._drop()
            self._master.close()

    def _offer(self, layout: Layout, wish: str) -> None:
        """Put the next batch into the ring, and take results meanwhile."""
        channel = self._connect(layout)
        if layout.size > channel.largest:
            raise FeedError(
                f"a batch of {layout.rows:,} rows has {layout.size:,} bytes, and may have {channel.largest:,}, a third of the feed's ring: "
                "make the ring larger"
            )
        number = self._round, self._partition, self._first + self._put
        channel.send({"op": "reserve", "number": number, "size": layout.size, "rows": layout.rows, "answers": wish})
        at = self._await("write")["at"]
        layout.write(memoryview(channel.memory)[at : at + layout.size])
        channel.send({"op": "written"})
        self._put += 1

    def _await(self, op: str) -> Message:
        """Return the next message `op`. Results that come are taken. Raises FeedGone where the reader wants nothing more."""
        assert self._channel is not None
        while True:
            message, file = self._channel.receive_file()
            if file >= 0:
                self._take(received(file))
                self._channel.send({"op": "collect"})
            elif message["op"] == "stopped":
                raise FeedGone("the reader wants nothing more")
            if message["op"] == op:
                return message

    def _take(self, results: list[Any]) -> None:
        skipped = min(self._again, len(results))
        self._again -= skipped
        if skipped < len(results):
            self._ready.append(results[skipped:])
        self._answered += len(results) - skipped
        while self._open and self._answered >= self._open[0].rows:
            self._answered -= self._open.popleft().rows
            self._put -= 1
            self._first += 1
        if self._answered and self._put <= 0:
            raise FeedError(f"there are {self._answered} results more than rows were fed")

    def _connect(self, layout: Layout) -> Channel:
        if self._channel is None:
            question = {"feeder": self._try, "size": layout.size, "rows": layout.rows, "host": machine()}
            gone = {} if self._ring is None else {"gone": self._ring}
            while (answer := self._master.ask("exchange", **question, **gone))["do"] != "put":
                gone = {}  # it lives, and it is not our business why it did not take more
            self._ring, self._round = answer["ring"], answer["round"]
            self._channel = Channel(answer["socket"], "feed")
            self._channel.send({"op": "collect"})
        return self._channel

    def _lose(self) -> None:
        """Begin anew with another reader: with the first row that has no result, and so with its batch."""
        self._drop()
        self._put, self._again = 0, self._answered

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
