"""Pass results on to the feeder of their rows, in their order.

Results come as a file without a name, which the reader has written. A feeder of this host gets its descriptor, one of another its bytes
(`streams`). The owner keeps descriptors while their feeder does not ask, as one does not whose own results are not taken; there are no more
of them than batches in the ring.

A feeder may go before all its rows have results, as that of an action does which has enough (`take`, `first`). The reader still gets the
batches that it left in the ring, and is asked for their results as before: the program cannot know. These results are dropped.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Sequence

import attrs


@attrs.define
class _Feeder:
    partitions: set[tuple[int, int]] = attrs.field(factory=set)
    answers: deque[tuple[int, int]] = attrs.field(factory=deque)  # rows, and the descriptor
    is_asking: bool = False


class Answers:
    """The results that are on their way through one owner."""

    def __init__(self) -> None:
        self._feeders: dict[int, _Feeder] = {}
        self._routes: dict[tuple[int, int], int | None] = {}  # (stage, partition) -> feeder; None: it has gone
        self._last: dict[tuple[int, int], int] = {}  # the number of the last batch

    @property
    def feeders(self) -> Collection[int]:
        """Return those that wait for results."""
        return list(self._feeders)

    def expect(self, feeder: int, number: tuple[int, int, int], is_last: bool) -> None:
        """Note that the results of a batch are for this feeder, and whether it is the partition's last one."""
        partition = number[:2]
        self._feeders.setdefault(feeder, _Feeder()).partitions.add(partition)
        self._routes[partition] = feeder
        if is_last:
            self._last[partition] = number[2]

    def wish(self, number: Sequence[int]) -> str:
        """Return what is wanted for a batch: nothing (""), results ("more"), or those of a partition's end ("last")."""
        partition = number[0], number[1]
        return "" if partition not in self._routes else "last" if self._last.get(partition) == number[2] else "more"

    def add(self, partition: tuple[int, int], rows: int, file: int) -> int | None:
        """Keep a file of results, and return its feeder; close it and return None where that has gone."""
        feeder = self._routes.get(partition)
        if feeder is None:
            os.close(file)
        else:
            self._feeders[feeder].answers.append((rows, file))
        return feeder

    def ask(self, feeder: int) -> None:
        """Note that a feeder takes one more file."""
        self._feeders.setdefault(feeder, _Feeder()).is_asking = True

    def take(self, feeder: int) -> tuple[int, int] | None:
        """Return the next rows and file for a feeder that asks, which the caller closes; None where there is none yet."""
        state = self._feeders[feeder]
        if not state.is_asking or not state.answers:
            return None
        state.is_asking = False
        return state.answers.popleft()

    def leave(self, feeder: int) -> None:
        """Forget a feeder, with all results that it did not take. Those that come later are dropped."""
        if (state := self._feeders.pop(feeder, None)) is not None:
            for partition in state.partitions:
                self._routes[partition] = None
            for _, file in state.answers:
                os.close(file)
