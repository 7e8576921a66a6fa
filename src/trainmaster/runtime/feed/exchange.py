"""Feed the rows of one partition to a reader, and get a result for each, in their order.

An exchange keeps the batches whose rows have no result yet. Where their reader is lost, or wants nothing more, it gives them to another
one, and drops the results that it had already. So each row gets one result, whoever dies; a task that Spark runs again begins anew.

A reader of another host is reached by a stream (`stream`), by which its results come back too. Where one breaks, the exchange begins anew,
with the same reader or another one.
"""

from __future__ import annotations

import time
from collections import deque

from .channel import Channel, FeedError, FeedGone
from .layout import Layout
from .master import Master
from .partition import AGAIN
from .results import unpack
from .stream import connect, machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from .channel import Message
    from .layout import Column
    from .master import Answer, Link

PATIENCE = 3.0  # s without a master: in an application none comes back
LATER_PATIENCE = 0.5  # s, of a task that Spark tries again


class Exchange:
    """The exchange of one partition. `try_`: the number of Spark's task. `patience`: s without a master. `is_over`: as of `Master`."""

    def __init__(
        self, link: Link, partition: int, try_: int, patience: float = PATIENCE, is_over: Callable[[], bool] = bool
    ) -> None:
        self._link, self._master = link, Master(link, is_over, patience)
        self._partition, self._try = partition, try_
        self._channel: Channel | None = None
        self._place: Answer = {}  # the present ring, as the master's answer names it
        self._gone: list[Any] | None = None  # the ring that was lost last
        self._was_reached = False  # there was a connection to it
        self._unreachable: set[str] = set()
        self._open: deque[Layout] = deque()  # batches whose rows have not all a result
        self._put = 0  # how many of these are in the present ring
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
        # Each reader has a round of its own, so batches are numbered anew.
        number = self._place["round"], self._partition, self._first + self._put
        channel.send({"op": "reserve", "number": number, "size": layout.size, "rows": layout.rows, "answers": wish})
        channel.write(self._await("write")["at"], layout)
        self._put += 1
        if channel.is_stream:
            self._await("ok")

    def _await(self, op: str) -> Message:
        """Return the next message `op`. Results that come are taken. Raises FeedGone where the reader wants nothing more."""
        assert self._channel is not None
        while True:
            message, content = self._channel.receive_content()
            if content is not None:
                self._take(unpack(content))
                self._channel.send({"op": "collect"})
            elif message["op"] == "stopped":
                self._gone = self._place["ring"]
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
            self._place, self._gone = self._ask_place(layout), None
            self._channel = self._open_channel()
            self._channel.send({"op": "collect"})
        return self._channel

    def _ask_place(self, layout: Layout) -> Answer:
        question = {"feeder": self._try, "size": layout.size, "rows": layout.rows, "host": machine()}
        while True:
            gone = {} if self._gone is None else {"gone": self._gone}
            answer = self._master.ask("exchange", **question, **gone, unreachable=sorted(self._unreachable))
            if answer["do"] == "put":
                return answer
            if answer["do"] == "stop":
                raise FeedError("the job has ended, and rows have no result: ask for them before its end")
            if self._gone is not None and answer["ring_lives"] and not self._was_reached:
                self._unreachable.add(self._gone[0])  # its agent serves it where we cannot reach it
            self._gone = None  # it lives, and it is not our business why it did not take more

    def _open_channel(self) -> Channel:
        """Connect to the present ring; where that is by a stream, a few times. Raises FeedGone."""
        pauses = list(AGAIN)
        while True:
            try:
                return connect(self._link, self._place)
            except FeedGone:
                if not self._place["address"] or not pauses:
                    raise
            time.sleep(pauses.pop(0))

    def _lose(self) -> None:
        """Begin anew with another reader: with the first row that has no result, and so with its batch."""
        self._was_reached = self._channel is not None
        if self._channel is None or not self._channel.is_stream:  # a stream that broke may be opened again
            self._gone = self._place["ring"]
        self._drop()
        self._put, self._again = 0, self._answered

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
