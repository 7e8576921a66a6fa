"""Feed one partition: put its batches, in order, into the rings that the master names.

A batch has a number, so a partition that is fed again (its feeder or a reader was lost, or Spark speculates) delivers nothing twice:
the master says what to skip, rings refuse what they have, and an older feeder is refused once a newer one has begun. The batches must be
the same ones each time.

A full ring makes a feeder ask the master, where it waits for whichever ring has room next. So no feeder waits for one slow reader while
another has nothing to read.

A ring of another host is reached by a stream (`stream`). One that breaks is opened again a few times, and the batch whose arrival is not
known is put again: a ring that has it says so.
"""

from __future__ import annotations

import time

from .channel import FeedError, FeedGone
from .feeder import Feeder
from .layout import Layout
from .master import Master
from .stream import connect, machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, TypeVar

    from .layout import Column
    from .master import Answer, Link

    T = TypeVar("T")

AGAIN = (0.1, 0.5, 2.0)  # s before each further try to open a stream that broke


class Superseded(FeedError):
    """Another try of the partition has taken over: Spark speculates, or takes this one for dead."""

    def __init__(self) -> None:
        super().__init__("another try of this partition has taken over")


class Partition:
    """The feeding of one partition. `number`: its round and itself; `try_`: rises each time that it is fed anew."""

    def __init__(self, link: Link, number: tuple[int, int], try_: int) -> None:
        self._link, self._number, self._try = link, number, try_
        self._master = Master(link)
        self._place: Answer = {}  # the present ring, as the master's answer names it
        self._count: int | None = None  # batches of the partition, where an earlier try has put them all
        self._feeder: Feeder | None = None
        self._supplies: dict[tuple[str, int], int] = {}  # rows in each ring, as it reported them
        self._unreachable: set[str] = set()
        self._host = machine()

    def feed(self, batches: Iterable[Sequence[Column]]) -> int | None:
        """Put all batches; return their number, or None where nobody wants more. Raises RunAgain and FeedError.

        `batches` is not even begun where all of them are in rings or were read.
        """
        try:
            begin, count = self._seek(0, 0, 0), 0
            for number, columns in enumerate(batches) if begin is not None and begin != self._count else ():
                count = number + 1
                if number == begin:
                    begin = self._put(number, Layout(columns))
                if begin is None:
                    break
            return None if begin is None else self._settle(self._count if count == 0 and self._count else count)
        finally:
            self._drop()
            self._master.close()

    def _put(self, number: int, layout: Layout) -> int | None:
        """Put a batch into a ring. Return the next one that is to be put; None where nobody wants more."""
        begin: int | None = number
        if (until := self._place["until"]) is not None and number >= until:
            begin = self._seek(number, layout.size, layout.rows)
        while begin == number:
            answer = self._offer(number, layout)
            if answer["op"] in ("write", "had"):
                return number + 1
            if answer["op"] == "superseded":
                raise Superseded
            wish = {"gone": self._place["ring"]} if answer["op"] == "gone" else {"full": answer.get("why", "stopped")}
            begin = self._seek(number, layout.size, layout.rows, **wish)
        return begin

    def _offer(self, number: int, layout: Layout) -> Answer:
        limit = {} if self._place["limit"] is None else {name: self._place[name] for name in ("limit", "ahead")}
        try:
            return self._at_ring(
                lambda feeder: feeder.offer((*self._number, number), layout, waits=False, **{"try": self._try}, **limit)
            )
        except FeedGone:
            return {"op": "gone"}

    def _at_ring(self, act: Callable[[Feeder], T]) -> T:
        """Do something at the present ring, which is the same when it is done again. Raises FeedGone."""
        pauses = list(AGAIN)
        while True:
            try:
                self._feeder = self._feeder or Feeder(connect(self._link, self._place))
                return act(self._feeder)
            except FeedGone:
                is_ended = self._feeder is not None and not self._feeder.is_streamed  # its agent has
                self._drop()
                if is_ended or not self._place["address"] or not pauses:
                    raise
            time.sleep(pauses.pop(0))

    def _seek(self, batch: int, size: int, rows: int, **wish: Any) -> int | None:
        """Find the first batch from this one on that is to be put, and its ring. All before are in rings. None: nobody wants more."""
        answer = self._claim(batch, size, rows, wish)
        while answer["do"] == "skip":
            batch, self._count = answer["until"], answer["count"]
            if batch == self._count:
                return batch
            answer = self._claim(batch, 0, 0, {})
        if answer["do"] == "stop":
            return None
        if answer["ring"] != self._place.get("ring"):
            self._drop()
        self._place = answer
        return batch

    def _claim(self, batch: int, size: int, rows: int, wish: dict[str, Any]) -> Answer:
        """Return the master's answer, for which a feeder may have to wait."""
        self._note_supply()
        while True:
            unreachable = sorted(self._unreachable)
            answer = self._ask(
                "claim", batch=batch, size=size, rows=rows, host=self._host, unreachable=unreachable, **wish
            )
            if answer["do"] != "wait":
                return answer
            if "gone" in wish and answer["ring_lives"]:  # its agent serves it where we cannot reach it
                self._unreachable.add(wish.pop("gone")[0])
            wish["has_waited"] = True

    def _settle(self, count: int) -> int:
        self._note_supply()
        self._ask("settle", count=count, supplies=[[*ring, rows] for ring, rows in self._supplies.items()])
        return count

    def _ask(self, op: str, **fields: Any) -> Answer:
        number, partition = self._number
        answer = self._master.ask(op, round=number, partition=partition, feeder=self._try, **fields)
        if answer["do"] == "superseded":
            raise Superseded
        return answer

    def _note_supply(self) -> None:
        """Hear from the present ring how many rows it has, which shows that it has all that was put."""
        if self._feeder is not None:
            try:
                if (rows := self._at_ring(Feeder.supply)) is not None:
                    task, attempt = self._place["ring"]
                    self._supplies[task, attempt] = rows
            except FeedGone:  # the master knows what that means for what was put
                return

    def _drop(self) -> None:
        if self._feeder is not None:
            self._feeder.close()
            self._feeder = None
