"""Write batches into a ring, of this host or (`stream`) of another.

    with Feeder(path) as feeder:
        for number, columns in enumerate(batches):
            if not feeder.put((stage, partition, number), columns):
                break  # the program has read enough
        feeder.flush()

A full ring makes `put` wait for as long as the reader needs. The number of a batch makes it unique: a batch that the ring has had, from a
feeder that Spark runs again, is dropped without a word. A batch that another feeder is writing is waited for, since that feeder may die.
"""

from __future__ import annotations

from .channel import Channel, FeedError
from .layout import Layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Any

    from .channel import Message
    from .layout import Column

    Number = tuple[int, int, int]  # stage, partition, batch


class Feeder:
    """One feeder, for one thread. Its methods raise FeedGone where the owner has ended.

    `place`: the path of the owner's socket, or a channel to it.
    """

    def __init__(self, place: str | Channel) -> None:
        self._channel = Channel(place, "feed") if isinstance(place, str) else place
        self._has_stopped = False

    @property
    def is_streamed(self) -> bool:
        return self._channel.is_stream

    @property
    def has_stopped(self) -> bool:
        """Tell whether the reader wants nothing more. Never waits."""
        if not self._has_stopped:
            self._has_stopped = (
                self._channel.receive(wait=False) is not None
            )  # nothing else comes without being asked for
        return self._has_stopped

    def put(self, number: Number, columns: Sequence[Column]) -> bool:
        """Write a batch. Return False where the reader wants nothing more. Raises FeedError where the batch is too large."""
        self.offer(number, Layout(columns))
        return not self._has_stopped

    def offer(self, number: Number, layout: Layout, **fields: Any) -> Message:
        """Write a batch where the owner lets it be written now; return its answer.

        `fields`: with `waits` false the answer may be `full`; see `channel`. Raises FeedError where the batch is too large.
        """
        if layout.size > self._channel.largest:
            raise FeedError(_too_large(number, layout, self._channel))
        try:
            answer = self._ask({"op": "reserve", "number": number, "size": layout.size, "rows": layout.rows, **fields})
            if answer["op"] == "write":
                self._channel.write(answer["at"], layout)
                if self._channel.is_stream and (reply := self._channel.receive() or answer)["op"] == "stopped":
                    self._has_stopped, answer = True, reply
        except BaseException:  # an interrupt: the answer would be taken for that of the next batch
            self.close()
            raise
        return answer

    def flush(self) -> bool:
        """Return once the owner has all batches that were put; False where the reader wants nothing more."""
        return self.supply() is not None

    def supply(self) -> int | None:
        """Return the rows that the ring was given by now, with all batches that were put; None where the reader wants nothing more."""
        answer = self._ask({"op": "flush"})
        return None if self._has_stopped else int(answer["supply"])

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Feeder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, message: Message) -> Message:
        stopped: Message = {"op": "stopped"}
        if self.has_stopped:
            return stopped
        self._channel.send(message)
        answer = self._channel.receive() or stopped
        self._has_stopped = answer["op"] == "stopped"
        return answer


def _too_large(number: Number, layout: Layout, channel: Channel) -> str:
    size, mend = "a row", "make the ring larger"
    if layout.rows != 1:
        size, mend = f"a batch of {layout.rows:,} rows", "put fewer rows into a batch, or make the ring larger"
    stage, partition, batch = number
    return (
        f"{size} has {layout.size:,} bytes, and a batch may have {channel.largest:,}, a third of the feed's ring of "
        f"{channel.size:,}: {mend} (stage {stage}, partition {partition}, batch {batch})"
    )
